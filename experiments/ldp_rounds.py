"""Accuracy and leakage by round: does an early model leak less than a late one?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import ClassVar

from experiments.catalog import about
from experiments.evidence import decided, idle, interval, learnt, with_interval
from experiments.experiment import Experiment, Outcome, Scale, Tell, Verdict
from experiments.ldp_jobs import (
    EPSILONS,
    LOCATION,
    MECHANISMS,
    ROUND_S,
    SPLITS,
    Task,
    job,
    labels,
    tasks_of,
)
from experiments.leakage import leakage
from experiments.sweeps import SEEDS, Sweep, Swept, reached, swept
from fedveil.federated.job import Job
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.privacy.finding import Measured
from fedveil.studies.several_runs import first_round

#: The dense net, which memorises its examples; LeNet on MNIST does not.
_DENSE: Task = "dnn-purchase100-synthetic"
_LENET: Task = "lenet-mnist"
#: The end of the names of sweeps whose dense net trains on the real rows of Location-30, and of the
#: names of all others in verdicts and tables.
_REAL, _SYNTHETIC = ", Location-30", ", synthetic Purchase-100"
#: The numbers of rounds after which a model is attacked.
ROUNDS: Mapping[Scale, Sequence[int]] = {"small": (2, 8), "medium": (2, 10, 80)}
_FIRST = 10
_EPS = EPSILONS[7]
_KINDS = ("not_encrypt", *MECHANISMS)
#: The seeds of each split. If clients hold two labels, the seeds differ more.
_SEEDS: Mapping[str, int] = {"iid": SEEDS, "shards": 8}
_SECONDS: Mapping[Scale, float] = {"small": 200, "medium": 5_500}
#: The accuracies that the source states, and the rounds in which the dense net reaches its own.
_LENET_RANGE, _DENSE_LEAST, _DENSE_ROUNDS = (0.6, 0.8), 0.5, (100, 300)


#: Seconds of the attacked runs on one data set, with the source's dense net.
_DENSE_S = ROUND_S["dnn-purchase100"] * sum(ROUNDS["medium"]) * len(_KINDS) * sum(_SEEDS.values())


def _sweeps(rounds: Sequence[int], ending: str = "") -> Mapping[str, Sweep]:
    """Return the sweeps of rounds, by protection and split. Their names have this `ending`."""
    return {
        f"{kind}, {split}{ending}": Sweep(
            "rounds", rounds, (f"protection.name={kind}", f"data.split={split}"), _SEEDS[split]
        )
        for kind in _KINDS
        for split in SPLITS
    }


class LeakageByRound(Experiment):
    """A membership attack on models of few and many rounds, and the accuracy of the first ten."""

    name = "ldp-rounds"
    what = "What a membership attack finds after few rounds and after many; the first ten rounds."
    source = "002, the premise of algorithm 2, and the text on figure 5"
    scales = ("small", "medium")
    smaller: ClassVar[Mapping[Scale, str]] = dict.fromkeys(
        scales,
        f"The dense nets are small ones because of the time. A round of the source's dense net "
        f"takes {ROUND_S['dnn-purchase100']:.0f} s on two cores, so its runs on one data set would "
        f"take about {about(_DENSE_S)}.",
    )

    def base(self, scale: Scale, task: Task) -> Job:
        """Return the job of a task, at the largest epsilon of a bit. Sweeps set its protection."""
        size = scale if task == _LENET else "small"
        found = job(size, task, protection="rr", eps=_EPS)
        changes = [f"name={self.name}", "evaluation.every=1", "record.page=false"]
        return Job.read(found.model_dump(), changes)

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds of all runs. Location-30 adds as many as the synthetic rows."""
        return _SECONDS[scale] * (2 if LOCATION in tasks_of(scale) else 1)

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Train the dense net for each number of rounds, and LeNet for ten."""
        rounds = ROUNDS[scale]
        dense = swept(folder, self.base(scale, _DENSE), _sweeps(rounds), tell)
        data = "a synthetic Purchase-100"
        if LOCATION in tasks_of(scale):
            data += " and on the real rows of Location-30"
            real = swept(folder, self.base(scale, LOCATION), _sweeps(rounds, _REAL), tell)
            dense = {**dense, **real}
        first = {
            f"first rounds, {kind}": Sweep("rounds", (_FIRST,), (f"protection.name={kind}",))
            for kind in _KINDS
        }
        lenet = swept(folder, self.base(scale, _LENET), first, tell)
        tell("membership attacks")
        leaks = {name: attacked(sweep) for name, sweep in dense.items()}
        ran = (
            f"Epsilon of a bit is {_EPS:g}, the largest of the source. The dense net of scale "
            f"small trains on {data} for {', '.join(map(str, rounds))} rounds. "
            f"The leakage rate is the balanced accuracy of a membership attack by the loss of the "
            f"model after these rounds; guessing is right half the time. Only the dense nets are "
            f"attacked: LeNet hardly memorises MNIST (`ldp-epsilon` states its leakage rate after "
            f"all rounds). If clients hold two labels (`shards`), the dense net has "
            f"{_SEEDS['shards']} seeds. LeNet trains for "
            f"{_FIRST} rounds, {'with' if scale == 'medium' else 'not with'} the source's model, "
            f"data and clients."
        )
        verdicts = [*judged(leaks), *beginnings(scale, lenet, dense)]
        return Outcome(ran, verdicts, [_table(dense, leaks)], plots(leaks), seeds=SEEDS)


#: The attack on every seed's model, by the number of rounds.
Leaks = Mapping[float, Sequence[Measured]]


def attacked(sweep: Swept) -> Leaks:
    """Return the leakage rates of the models, by the number of rounds and then by seed."""
    return {rounds: [leakage(run.folder) for run in runs] for rounds, runs in sweep.items()}


def judged(leaks: Mapping[str, Leaks]) -> Iterator[Verdict]:
    """Judge whether the leakage after the last round is above that after the first few.

    If the attack only guesses even without protection, the verdict says nothing.
    """
    for name, by_round in leaks.items():
        early, *_, late = _values(by_round)
        plain = _values(leaks[f"{_KINDS[0]}, {name.partition(', ')[2]}"])[-1]
        guesses = "" if interval(plain)[0] > 0.5 else "without protection, the attack only guesses"
        agrees, unsure = decided([b - a for a, b in zip(early, late, strict=True)])
        yield Verdict.of(
            agrees, f"leakage by round: {_shown(name)}",
            "an early model leaks little, a late one more",
            "; ".join(f"{rounds:g}: {with_interval([leak.value for leak in each])}"
                      for rounds, each in by_round.items()),
            held_to="late minus early, seed by seed: the interval lies above 0",
            same="the model memorises its examples as the rounds go by",
            other="the noise hides what the model memorises",
            nothing=guesses or unsure,
        )  # fmt: skip


def _shown(name: str) -> str:
    """Return the name of a dense net's runs as a page shows it: with the data."""
    return name if name.endswith(_REAL) else f"{name}{_SYNTHETIC}"


def _values(leaks: Leaks) -> list[list[float]]:
    return [[leak.value for leak in each] for each in leaks.values()]


def beginnings(
    scale: Scale, lenet: Mapping[str, Swept], dense: Mapping[str, Swept]
) -> Iterator[Verdict]:
    """Judge how soon both nets reach the accuracies of the source's text."""
    least, most = _LENET_RANGE
    for name, sweep in lenet.items():
        ends = reached(sweep[_FIRST])
        yield Verdict.of(
            min(ends) >= least, f"LeNet's accuracy after ten rounds: {name.partition(', ')[2]}",
            f"{least:g} to {most:g}", with_interval(ends),
            held_to=f"every seed at least {least:g}; more than {most:g} is better than the source, "
            "and agrees",
            same="ten rounds are enough for a LeNet"
            + (", and it is better here than in the source" if mean(ends) > most else ""),
            other="ten rounds are not enough at this epsilon",
            nothing=idle({name: max(ends)}, labels(scale, _LENET)),
        )  # fmt: skip
    for kind in _KINDS:
        longest = [*dense[f"{kind}, iid"].values()][-1]
        found = [first_round(run, "accuracy", lambda value: value >= _DENSE_LEAST)
                 for run in longest]  # fmt: skip
        rounds = [each for each in found if each is not None]
        within = len(rounds) == len(found) and _DENSE_ROUNDS[0] <= min(rounds)
        ends = reached(longest)
        yield Verdict.of(
            within,
            f"the dense net's first round with accuracy {_DENSE_LEAST:g}: {_shown(kind)}",
            "{} to {} rounds".format(*_DENSE_ROUNDS),
            ", ".join(str(each or "never") for each in found),
            held_to=f"every seed, not before round {_DENSE_ROUNDS[0]}",
            same="a dense net learns slowly",
            other="the small net, with five local epochs, is faster" if len(rounds) == len(found)
            else "it does not get there",
            nothing="" if learnt(max(ends), labels("small", _DENSE)) else "it learnt nothing",
        )  # fmt: skip


def plots(leaks: Mapping[str, Leaks]) -> list[Plot]:
    """Plot the leakage rates by round: those on the synthetic data, and those on Location-30."""
    real = {name: by_round for name, by_round in leaks.items() if name.endswith(_REAL)}
    synthetic = {name: by_round for name, by_round in leaks.items() if name not in real}
    found = [_plot("leakage", "a synthetic Purchase-100", synthetic)]
    return [*found, _plot("location30", "Location-30", real)] if real else found


def _plot(file: str, data: str, leaks: Mapping[str, Leaks]) -> Plot:
    curves = [
        Curve(name, [*by_round],
              [*map(mean, _values(by_round))],
              marks=True, dashed=", shards" in name, protection=name.partition(",")[0])
        for name, by_round in leaks.items()
    ]  # fmt: skip
    title = f"What a membership attack finds on {data}, by round"
    return Plot(file, title, Axis("rounds", log=True), Axis("leakage rate"), curves,
                "Dashed: two labels a client.")  # fmt: skip


def _table(runs: Mapping[str, Swept], leaks: Mapping[str, Leaks]) -> Table:
    rows = [
        (_shown(name), f"{rounds:g}", with_interval(reached(each)),
         with_interval([leak.value for leak in leaks[name][rounds]]))
        for name, sweep in runs.items() for rounds, each in sweep.items()
    ]  # fmt: skip
    columns = ("run", "rounds", "accuracy", "leakage rate")
    return Table(columns, rows, "The dense net after each number of rounds.")

"""DP_ENCRYPT's noise by the number of clients: 001 says that it cancels among a thousand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from fedveil.federated.job import Job
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.studies.evidence import Lost, idle, with_interval
from fedveil.studies.experiment import Experiment, Outcome, Scale, Tell, Verdict
from fedveil.studies.several_runs import Arm, accuracy, falls, trained

CLIENTS = (10, 30, 100, 300, 1000)
SEEDS = 3
#: The least epsilon that the source advises, and the ends and middle of its range of clips.
EPS, CLIPS = 50.0, (0.5, 1.0, 2.0)
#: An accuracy that falls by no more shows no effect.
VISIBLE = 0.01
_SLACK = 0.02
_LABELS = 10
#: Rounds and seconds of all runs, by scale.
_ROUNDS: Mapping[Scale, int] = {"small": 10, "full": 60}
_TAKES_S: Mapping[Scale, float] = {"small": 120.0, "full": 3600.0}

#: Accuracies of all seeds by the number of clients and the clip, which is 0 without protection.
Reached = Mapping[tuple[int, float], Sequence[float]]


class NoiseByClients(Experiment):
    """Deals the same examples to more and more clients, each of whom adds its own noise."""

    name = "dp-encrypt-clients"
    what = "What DP_ENCRYPT's noise costs by the number of clients, and by the clip."
    source = "001, DP_ENCRYPT"

    def arms(self, scale: Scale) -> dict[tuple[int, float, int], Arm]:
        """Return all runs by the number of clients, the clip and the seed."""
        settings = [(n, clip) for n in CLIENTS for clip in (0.0, 1.0)]
        settings += [(CLIENTS[-1], clip) for clip in CLIPS if clip != 1.0]
        return {(n, c, s): _arm(scale, n, c, s) for n, c in settings for s in range(SEEDS)}

    def estimate_s(self, scale: Scale) -> float:
        """Estimate all runs, as they were measured."""
        return _TAKES_S[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Run all of them, with three seeds each."""
        arms = self.arms(scale)
        runs = trained(folder, [*arms.values()], tell)
        reached: dict[tuple[int, float], list[float]] = {}
        for (n, clip, _), arm in arms.items():
            reached.setdefault((n, clip), []).append(accuracy(runs[arm.name]))
        job = arms[CLIENTS[0], 0.0, 0].job
        ran = (
            f"{job.model} on {job.data.name}, whose examples are dealt at random to all clients; "
            f"every client in each of {job.rounds} rounds. dp_eps is {EPS:g} a round, the least "
            f"that the source advises, dp_delta 1 / clients, and the clip 1 where it is not varied."
        )
        plot = Plot(
            "clients", "Accuracy by the number of clients", Axis("clients", log=True),
            Axis("test accuracy", unit="percent"),
            [_curve(reached, 0.0, "not_encrypt"), _curve(reached, 1.0, "dp_encrypt")],
        )  # fmt: skip
        return Outcome(ran, [*judged(reached)], [_table(reached)], [plot], seeds=SEEDS)


def _arm(scale: Scale, clients: int, clip: float, seed: int) -> Arm:
    name = f"clients-{clients},clip-{clip:g},seed-{seed}"
    settings = {"dp_eps": EPS, "dp_norm_clip": clip or 1.0, "dp_delta": 1 / clients}
    data = {
        "name": name,
        "seed": seed,
        "rounds": _ROUNDS[scale],
        "clients": {"number": clients, "fraction": 1},
        "data": {"name": "mnist" if scale == "full" else "digits"},
        "model": "logistic",
        "training": {"epochs": 5, "batch_size": 16, "lr": 0.1},
        "server": {"weighting": "equal"},
        "protection": {"name": "dp_encrypt" if clip else "not_encrypt", "dp_encrypt": settings},
        "evaluation": {"every": 1},
        "simulation": {"workers": 0},
    }
    return Arm(name, Job.read(data, []))


def judged(reached: Reached) -> Iterator[Verdict]:
    """Judge the source's advice by the accuracies of all seeds."""
    most = CLIENTS[-1]
    plain, noisy = ([mean(reached[n, clip]) for n in CLIENTS] for clip in (0.0, 1.0))
    lost = Lost(plain, noisy, _LABELS)
    yield Verdict.of(
        bool(lost.trend) and falls(lost.trend, _SLACK),
        f"accuracy-loss rate of {', '.join(map(str, CLIENTS))} clients", "the noise cancels",
        ", ".join(f"{rate:.3f}" for rate in lost.rates),
        held_to=f"falls from the first run above chance level; no rise above {_SLACK:g}",
        same="the noise of a mean is that of one client over the root of their number",
        other="more clients have fewer examples each, which costs more than the noise",
        nothing=lost.nothing,
    )  # fmt: skip
    for clip in sorted(CLIPS, key=lambda clip: clip != 1.0):
        pairs = zip(reached[most, 0.0], reached[most, clip], strict=True)
        costs = [without - with_noise for without, with_noise in pairs]
        yield Verdict.of(
            mean(costs) <= VISIBLE,
            f"accuracy that the noise costs with {most:,} clients, clip {clip:g}",
            "no visible effect", with_interval(costs), held_to=f"at most {VISIBLE:g}",
            same="its share of the mean update is small",
            other="a model of this size has more noise than that even in the mean",
            nothing=idle(
                {
                    "without protection": mean(reached[most, 0.0]),
                    "with it": mean(reached[most, clip]),
                },
                _LABELS,
            ),
        )  # fmt: skip


def _curve(reached: Reached, clip: float, protection: str) -> Curve:
    values = [[*reached[n, clip]] for n in CLIENTS]
    return Curve(
        protection, [*map(float, CLIENTS)], [mean(each) for each in values],
        [min(each) for each in values], [max(each) for each in values], marks=True,
        protection=protection,
    )  # fmt: skip


def _table(reached: Reached) -> Table:
    rows = [
        (f"{n:,}", f"{clip:g}" if clip else "none", with_interval(values, 4))
        for (n, clip), values in reached.items()
    ]
    return Table(("clients", "clip", "accuracy"), rows, "Every number of clients and every clip.")

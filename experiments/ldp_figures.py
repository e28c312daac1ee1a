"""The figures of source 002. Each has a table of runs, plots, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from experiments.arms import Runs, accuracy, curve, listed, mean_accuracy, trained
from experiments.evidence import SEEDS, Lost, of_all, of_seeds, seeded, with_interval
from experiments.experiment import Outcome, Scale, Tell
from experiments.ldp_claims import (
    adapting_helps,
    baselines_reached,
    cells_help,
    clients_help,
    converges,
    epsilon_decides,
    few_labels_cost,
    few_labels_cost_without,
    leakage_within,
)
from experiments.ldp_jobs import (
    CELLS,
    EPSILONS,
    LARGE,
    MECHANISMS,
    SPLITS,
    LDPFigure,
    Task,
    estimate_s,
    labels,
    title,
)
from experiments.leakage import leakage
from experiments.saved_results import last_checkpoint
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.privacy.finding import CONFIDENCE, Measured
from fedveil.studies.several_runs import first_round

More = Mapping[str, Mapping[str, Any]]


def _lost(runs: Runs, plain: str, names: Iterable[str], of: int = 10) -> Lost:
    """Return the accuracies of the runs `names` and of the run `plain`. There are `of` labels."""
    noisy = [accuracy(runs[name]) for name in names]
    return Lost([accuracy(runs[plain])] * len(noisy), noisy, of)


def _rates(
    name: str, text: str, x: Axis, points: Sequence[float], rates: Mapping[str, Lost]
) -> Plot:
    """Plot loss rates, a curve for each series. Series without a mechanism's name belong to RR."""
    at = [*map(float, points)]
    curves = [
        Curve(
            series, at, lost.rates, marks=True, protection=series if series in MECHANISMS else "rr"
        )
        for series, lost in rates.items()
    ]
    return Plot(name, text, x, Axis("accuracy-loss rate"), curves)


class Convergence(LDPFigure):
    """Accuracy round by round under RR and OUE, at several epsilons."""

    name = "ldp-convergence"
    what = "How soon a model converges under RR and OUE, by epsilon."
    source = "002, figure 1"
    #: The accuracy at which rounds are compared, as a share of the accuracy without protection.
    share = 0.8

    def table(self, scale: Scale) -> More:
        """Return a run without protection, and a run of each mechanism at each epsilon."""
        return {
            "plain": {},
            **{f"{kind}-{eps:g}": {"protection": kind, "eps": eps}
               for kind in MECHANISMS for eps in LARGE},
        }  # fmt: skip

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Compare both mechanisms with the run without protection."""
        target = self.share * accuracy(runs["plain"])
        rows = [
            (name, f"{accuracy(run):.3f}", f"{reached or 'never'}")
            for name, run in runs.items()
            for reached in [first_round(run, "accuracy", lambda value: value >= target)]
        ]
        columns = ("run", "accuracy, last five tests", f"rounds to {target:.3f}")
        caption = f"Rounds until {self.share:.0%} of the accuracy without protection."
        table = Table(columns, rows, caption)
        ran = (
            f"The source shows figure 1 as a picture and does not state its epsilons. Here they "
            f"are {listed(LARGE, 1)}."
        )
        verdicts = [converges(runs, kind) for kind in MECHANISMS]
        return Outcome(ran, verdicts, [table], [self._plot(runs, kind) for kind in MECHANISMS])

    def _plot(self, runs: Runs, kind: str) -> Plot:
        curves = [curve(f"epsilon {eps:g}", runs[f"{kind}-{eps:g}"]) for eps in LARGE]
        curves.append(curve("without protection", runs["plain"], dashed=True))
        return Plot(kind, f"{kind.upper()}: convergence by epsilon of a bit", Axis("round"),
                    Axis("test accuracy", unit="percent"), curves)  # fmt: skip


class Cells(LDPFigure):
    """Accuracy-loss rate of RR by the number of cells."""

    name = "ldp-cells"
    what = "The accuracy lost under RR by the number of cells, if clients are i.i.d. or not."
    source = "002, figure 2"
    #: Series of the figure: the split of examples, and epsilon.
    series = (("iid", EPSILONS[7]), ("shards", EPSILONS[7]), ("iid", EPSILONS[6]))

    def table(self, scale: Scale) -> More:
        """Return a run without protection for each split, and the runs of all series."""
        plain = {split: {"split": split} for split in SPLITS}
        return plain | {
            f"{split}-{eps:g}-{cells}": {
                "split": split, "protection": "rr", "eps": eps, "cells": cells
            }
            for split, eps in self.series
            for cells in CELLS
        }  # fmt: skip

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Compute the loss rate along each series."""
        ran = (
            f"The source does not say at which epsilon it varied the cells. Here it is the "
            f"source's largest, {EPSILONS[7]:g}, and {EPSILONS[6]:g}. Values are rounded to the "
            f"nearest state, as in the source. Under `shards`, each client holds few labels."
        )
        rates = {
            (split, eps): _lost(runs, split, (f"{split}-{eps:g}-{cells}" for cells in CELLS))
            for split, eps in self.series
        }
        plot = _rates(
            "cells", "RR: accuracy lost by the number of cells", Axis("cells", log=True),
            CELLS, {f"{split}, epsilon {eps:g}": rates[split, eps] for split, eps in rates},
        )  # fmt: skip
        return Outcome(ran, [cells_help(*series) for series in rates.items()], (), [plot])


class Epsilons(LDPFigure):
    """Accuracy-loss rate and leakage rate by epsilon, for both tasks and both mechanisms."""

    name = "ldp-epsilon"
    what = "What epsilon costs in accuracy, and what a membership attack still finds."
    source = "002, figure 3"
    scales = get_args(Scale)
    dense = True
    medium_rounds = 50
    #: At scale small, two of the four epsilons that are too small to learn anything are omitted.
    shown: Mapping[Scale, Sequence[float]] = {
        "small": (EPSILONS[0], EPSILONS[2], *LARGE),
        "medium": EPSILONS,
        "full": EPSILONS,
    }

    def table(self, scale: Scale) -> More:
        """Return each task's runs: without protection, and of each mechanism at each epsilon."""
        tasks = self.tasks(scale)
        return {
            **{task: {"task": task} for task in tasks},
            **{f"{task}-{kind}-{eps:g}": {"task": task, "protection": kind, "eps": eps}
               for task in tasks for kind in MECHANISMS for eps in self.shown[scale]},
        }  # fmt: skip

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Judge all runs, and the attack on the models of RR."""
        tell("membership attacks")
        shown, tasks = self.shown[scale], self.tasks(scale)
        leaks: dict[Task, Sequence[Measured]] = {
            task: [leakage(folder / name) for name in
                   [task, *(f"{task}-rr-{eps:g}" for eps in shown)]]
            for task in tasks
        }  # fmt: skip
        rates = {
            (task, kind): _lost(runs, task, (f"{task}-{kind}-{eps:g}" for eps in shown),
                                labels(scale, task))
            for task in tasks
            for kind in MECHANISMS
        }  # fmt: skip
        ran = (
            f"Epsilons: {', '.join(f'{eps:g}' for eps in shown)}. The leakage rate is the balanced "
            f"accuracy of a membership attack that compares the final model's loss on an example "
            f"with a threshold. The attacker chooses the threshold on one half of the examples, of "
            f"which it knows the members."
        )
        plots = [
            _rates(
                task, f"{title(scale, task)}: accuracy lost by epsilon of a bit",
                Axis("epsilon", log=True), shown, {kind: rates[task, kind] for kind in MECHANISMS},
            )
            for task in tasks
        ]  # fmt: skip
        baselines = baselines_reached(scale, runs, tasks)
        of_rr = {task: rates[task, "rr"] for task in tasks}
        verdicts = [*baselines, *epsilon_decides(rates), *leakage_within(leaks, of_rr)]
        return Outcome(ran, verdicts, (), [*plots, _leak_plot(scale, shown, leaks)])


def _leak_plot(
    scale: Scale, shown: Sequence[float], leaks: Mapping[Task, Sequence[Measured]]
) -> Plot:
    curves = []
    for task, (plain, *noisy) in leaks.items():
        values, low, high = ([getattr(leak, part) for leak in noisy]
                             for part in ("value", "low", "high"))  # fmt: skip
        curves.append(Curve(title(scale, task), shown, values, low, high, marks=True,
                            protection="rr"))  # fmt: skip
        level = [plain.value] * len(shown)
        curves.append(Curve(f"{title(scale, task)}, plain", shown, level, dashed=True,
                            protection="not_encrypt"))  # fmt: skip
    return Plot("leakage", "What a membership attack finds, under RR", Axis("epsilon", log=True),
                Axis("leakage rate"), curves,
                "Shaded: 95% intervals. Guessing is right half the time.")  # fmt: skip


class Clients(LDPFigure):
    """Accuracy-loss rate by the number of clients that share one set of examples."""

    name = "ldp-clients"
    what = "The accuracy lost under RR and OUE by the number of clients."
    source = "002, figure 4"
    #: Numbers of clients, half of whom are drawn for a round.
    numbers: Mapping[Scale, Sequence[int]] = {
        "small": (25, 50, 100, 200),
        "full": (100, 200, 500, 1000),
    }
    seeds: Mapping[Scale, Sequence[int]] = {"small": SEEDS[:1], "full": SEEDS}
    eps = EPSILONS[6]

    def table(self, scale: Scale) -> More:
        """Return, for each number of clients, runs without protection and under both mechanisms."""
        return {
            seeded(f"{kind}-{number}", seed): {
                "clients": number, "protection": kind, "eps": self.eps, "seed": seed
            }
            for number in self.numbers[scale]
            for kind in ("not_encrypt", *MECHANISMS)
            for seed in self.seeds[scale]
        }  # fmt: skip

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Compute the loss rates of both mechanisms, against as many clients without protection."""
        numbers = self.numbers[scale]
        reached = {
            kind: [[accuracy(run) for run in of_seeds(runs, f"{kind}-{n}")] for n in numbers]
            for kind in ("not_encrypt", *MECHANISMS)
        }
        by_seed = {kind: list(zip(*found, strict=True)) for kind, found in reached.items()}
        rates = {
            kind: [Lost(plain, noisy, 10) for plain, noisy in
                   zip(by_seed["not_encrypt"], by_seed[kind], strict=True)]
            for kind in MECHANISMS
        }  # fmt: skip
        ran = (
            f"There are {', '.join(map(str, numbers))} clients, half of them in each round, and "
            f"epsilon is {self.eps:g}. All numbers of clients share the same set of examples. The "
            f"loss is measured against a run with equally many clients and no protection. The "
            f"source states neither its numbers of clients nor its epsilon."
        )
        plot = _rates(
            "clients", f"Accuracy lost by the number of clients, epsilon {self.eps:g}",
            Axis("clients"), numbers, {kind: of_all(lost) for kind, lost in rates.items()},
        )  # fmt: skip
        verdicts = [clients_help(kind, numbers, rates[kind]) for kind in MECHANISMS]
        return Outcome(ran, verdicts, (), [plot], seeds=len(self.seeds[scale]))


class NonIID(LDPFigure):
    """Accuracy-loss rate of RR by epsilon, for both splits of examples."""

    name = "ldp-noniid"
    what = "The accuracy lost under RR if each client holds two labels, and if clients are i.i.d."
    source = "002, figures 2 to 4"

    def table(self, scale: Scale) -> More:
        """Return each split's runs: without protection, and under RR at each epsilon."""
        plain = {
            seeded(split, seed): {"split": split, "seed": seed}
            for split in SPLITS
            for seed in SEEDS
        }
        return plain | {
            f"{split}-{eps:g}": {"split": split, "protection": "rr", "eps": eps}
            for split in SPLITS
            for eps in LARGE
        }

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Compare both splits with their own runs without protection."""
        iid, shards = (_lost(runs, s, (f"{s}-{eps:g}" for eps in LARGE)) for s in SPLITS)
        ran = (
            "Non-IID is McMahan's split, which the source cites: each client gets two shards of "
            "the examples sorted by label. These runs have twice the rounds. An accuracy without "
            f"protection is the mean of {len(SEEDS)} seeds, with its {CONFIDENCE:.0%} confidence "
            "interval. The "
            "runs under RR have one seed."
        )
        plot = _rates(
            "noniid", "RR: accuracy lost, by the split of the examples", Axis("epsilon", log=True),
            LARGE, {"dealt at random": iid, "two labels a client": shards},
        )  # fmt: skip
        verdicts = [*few_labels_cost_without(runs), few_labels_cost(iid, shards)]
        return Outcome(ran, verdicts, (), [plot], seeds=0)


class Adaptive(LDPFigure):
    """Accuracy round by round under RR with a fixed epsilon and with the adaptive one."""

    name = "ldp-adaptive"
    what = "Whether the adaptive epsilon speeds up convergence, and what it spends."
    source = "002, figure 5 and algorithm 2"
    scales = get_args(Scale)
    dense = True
    medium_rounds = 100
    #: Epsilons at which LeNet's small stand-in and the other nets converge, but not at once.
    small_eps, eps = EPSILONS[5], EPSILONS[6]
    legend: Mapping[str, str] = {
        "fixed": "fixed",
        "adaptive": "adaptive",
        "same-total": "fixed, as much in total as adaptive",
        "plain": "without protection",
    }

    def table(self, scale: Scale) -> More:
        """Return each task's runs: without protection, at a fixed, and at an adaptive epsilon."""
        kinds: More = {
            "plain": {"protection": "not_encrypt"},
            "fixed": {"protection": "rr"},
            "adaptive": {"protection": "rr", "adaptive": True},
        }
        return {
            seeded(f"{task}-{kind}", seed): {
                "task": task, "eps": self._eps(scale, task), "seed": seed, **more
            }
            for task in self.tasks(scale)
            for kind, more in kinds.items()
            for seed in (SEEDS if kind != "plain" else SEEDS[:1])
        }  # fmt: skip

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds of all runs. Each adaptive run has another one of equal total."""
        jobs = {arm.name: arm.job for arm in self.arms(scale)}
        again = [jobs[name] for name in jobs if "adaptive" in name]
        return estimate_s(scale, [*jobs.values(), *again])

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Compare with further runs: a fixed epsilon that spends as much as the adaptive one."""
        tasks = self.tasks(scale)
        spent = {name: mean_eps(folder / name) for name in runs if not name.endswith("plain")}
        more = [
            self.arm(scale, seeded(f"{task}-same-total", seed), task, seed=seed, protection="rr",
                     eps=spent[seeded(f"{task}-adaptive", seed)])
            for task in tasks
            for seed in SEEDS
        ]  # fmt: skip
        runs = {**runs, **trained(folder, more, tell)}
        spent |= {arm.name: mean_eps(folder / arm.name) for arm in more}
        ran = (
            f"The epsilon of the next round is eps / A_s, where A_s is the angular similarity of "
            f"the last two models. eps is {self._eps(scale, tasks[0]):g} for LeNet and "
            f"{self.eps:g} for the dense nets. The source compares this with eps in every round. "
            f"Here it is also compared with a fixed epsilon that spends the same total. The run "
            f"without protection has one seed, and the plots show one."
        )
        rows = [
            (name, *(with_interval([figure(run) for run in mine])
                     for figure in (accuracy, mean_accuracy)),
             f"{spent[name]:.3f}" if name in spent else "")
            for task in tasks
            for name in (f"{task}-{kind}" for kind in self.legend)
            for mine in [of_seeds(runs, name)]
        ]  # fmt: skip
        columns = ("run", "accuracy, last five tests", "mean over all rounds",
                   "mean epsilon of a bit, first seed")  # fmt: skip
        table = Table(columns, rows, "The accuracy of each run, and the epsilon that it spent.")
        plots = [self._plot(scale, runs, task) for task in tasks]
        verdicts = [*adapting_helps(scale, runs, spent, tasks)]
        return Outcome(ran, verdicts, [table], plots, seeds=len(SEEDS))

    def _eps(self, scale: Scale, task: Task) -> float:
        return self.small_eps if (scale, task) == ("small", "lenet-mnist") else self.eps

    def _plot(self, scale: Scale, runs: Runs, task: Task) -> Plot:
        curves = [
            curve(legend, runs[f"{task}-{kind}"], dashed=kind == "plain")
            for kind, legend in self.legend.items()
        ]
        text = f"{title(scale, task)}: a fixed and an adaptive epsilon"
        return Plot(task, text, Axis("round"), Axis("test accuracy", unit="percent"), curves)


def mean_eps(folder: Path) -> float:
    """Return RR's epsilon per bit, averaged over a run's rounds: its total by plain addition."""
    saved = last_checkpoint(folder)
    return float(saved.protection["spent"]) / (2 * len(saved.weights) * saved.round)

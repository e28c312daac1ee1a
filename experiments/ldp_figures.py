"""The figures of source 002. Each has a table of runs, plots, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.arms import Runs, accuracy, curve, listed
from experiments.evidence import SEEDS, Lost, mean_of, of_seeds, seeded
from experiments.experiment import Outcome, Scale, Tell
from experiments.ldp_claims import (
    cells_help,
    clients_help,
    converges,
    few_labels_cost,
    few_labels_cost_without,
)
from experiments.ldp_jobs import (
    CELLS,
    EPSILONS,
    LARGE,
    MECHANISMS,
    REPEATED,
    SPLITS,
    USUAL_CELLS,
    ArmArguments,
    LDPFigure,
    seeds_at,
)
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.studies.several_runs import first_round


def lost_accuracy(runs: Runs, names: Mapping[str, str], of: int = 10) -> Lost:
    """Return the accuracies of noisy runs, and of runs without protection at the same seeds.

    `names` has the name of the run without protection for each noisy run. There are `of` labels.
    """
    plain, noisy = (
        [[accuracy(run) for run in of_seeds(runs, name)] for name in each]
        for each in (names.values(), names)
    )
    shared = [every[: len(each)] for every, each in zip(plain, noisy, strict=True)]
    return Lost(shared, noisy, of)


def rates_by(
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
    saved_metrics = ("accuracy",)
    #: The accuracy at which rounds are compared, as a share of the accuracy without protection.
    share = 0.8

    def table(self, scale: Scale) -> ArmArguments:
        """Return a run without protection, and the runs of each mechanism at each epsilon."""
        return {
            "plain": {},
            **{seeded(f"{kind}-{eps:g}", seed): {"protection": kind, "eps": eps, "seed": seed}
               for kind in MECHANISMS for eps in LARGE for seed in seeds_at(scale, eps)},
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
        if scale == "full":
            ran += (
                f" At {listed(REPEATED, 1)}, {mean_of()}. The other runs have one seed, and the "
                f"plots show one."
            )
        verdicts = [converges(runs, kind) for kind in MECHANISMS]
        plots = [self._plot(runs, kind) for kind in MECHANISMS]
        return Outcome(ran, verdicts, [table], plots, seeds=0 if scale == "full" else 1)

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
    saved_metrics = ("accuracy",)
    #: Series of the figure: the split of examples, and epsilon.
    series = (("iid", EPSILONS[7]), ("shards", EPSILONS[7]), ("iid", EPSILONS[6]))

    def table(self, scale: Scale) -> ArmArguments:
        """Return each split's runs without protection, and the runs of all series."""
        seeds = seeds_at(scale, EPSILONS[7])
        plain = {
            seeded(split, seed): {"split": split, "seed": seed}
            for split in SPLITS
            for seed in seeds
        }
        return plain | {
            seeded(f"{split}-{eps:g}-{cells}", seed): {
                "split": split, "protection": "rr", "eps": eps, "cells": cells, "seed": seed
            }
            for split, eps in self.series
            for cells in CELLS
            for seed in (seeds if cells == USUAL_CELLS else SEEDS[:1])
        }  # fmt: skip

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Compute the loss rate along each series."""
        ran = (
            f"The source does not say at which epsilon it varied the cells. Here it is the "
            f"source's largest, {EPSILONS[7]:g}, and {EPSILONS[6]:g}. Values are rounded to the "
            f"nearest state, as in the source. Under `shards`, each client holds few labels."
        )
        if scale == "full":
            ran += (
                f" At {USUAL_CELLS} cells, which all other pages use, {mean_of()}. The other runs "
                f"have one seed."
            )
        rates = {
            (split, eps): lost_accuracy(
                runs, {f"{split}-{eps:g}-{cells}": split for cells in CELLS}
            )
            for split, eps in self.series
        }
        plot = rates_by(
            "cells", "RR: accuracy lost by the number of cells", Axis("cells", log=True),
            CELLS, {f"{split}, epsilon {eps:g}": rates[split, eps] for split, eps in rates},
        )  # fmt: skip
        verdicts = [cells_help(*series) for series in rates.items()]
        return Outcome(ran, verdicts, (), [plot], seeds=0 if scale == "full" else 1)


class Clients(LDPFigure):
    """Accuracy-loss rate by the number of clients that share one set of examples."""

    name = "ldp-clients"
    what = "The accuracy lost under RR and OUE by the number of clients."
    source = "002, figure 4"
    saved_metrics = ("accuracy",)
    #: Numbers of clients, half of whom are drawn for a round.
    numbers: Mapping[Scale, Sequence[int]] = {
        "small": (25, 50, 100, 200),
        "full": (100, 200, 500, 1000),
    }
    eps = EPSILONS[6]

    def table(self, scale: Scale) -> ArmArguments:
        """Return, for each number of clients, runs without protection and under both mechanisms."""
        return {
            seeded(f"{kind}-{number}", seed): {
                "clients": number, "protection": kind, "eps": self.eps, "seed": seed
            }
            for number in self.numbers[scale]
            for kind in ("not_encrypt", *MECHANISMS)
            for seed in seeds_at(scale, self.eps)
        }  # fmt: skip

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Compute the loss rates of both mechanisms, against as many clients without protection."""
        numbers = self.numbers[scale]
        rates = {
            kind: lost_accuracy(runs, {f"{kind}-{n}": f"not_encrypt-{n}" for n in numbers})
            for kind in MECHANISMS
        }
        ran = (
            f"There are {', '.join(map(str, numbers))} clients, half of them in each round, and "
            f"epsilon is {self.eps:g}. All numbers of clients share the same set of examples. The "
            f"loss is measured against a run with equally many clients and no protection. The "
            f"source states neither its numbers of clients nor its epsilon."
        )
        plot = rates_by(
            "clients", f"Accuracy lost by the number of clients, epsilon {self.eps:g}",
            Axis("clients"), numbers, rates,
        )  # fmt: skip
        verdicts = [clients_help(kind, numbers, rates[kind]) for kind in MECHANISMS]
        return Outcome(ran, verdicts, (), [plot], seeds=len(seeds_at(scale, self.eps)))


class NonIID(LDPFigure):
    """Accuracy-loss rate of RR by epsilon, for both splits of examples."""

    name = "ldp-noniid"
    what = "The accuracy lost under RR if each client holds two labels, and if clients are i.i.d."
    source = "002, figures 2 to 4"
    saved_metrics = ("accuracy",)
    #: The seeds of the runs without protection. At full size, three could not decide.
    plain_seeds = range(5)

    def table(self, scale: Scale) -> ArmArguments:
        """Return each split's runs: without protection, and under RR at each epsilon."""
        plain = {
            seeded(split, seed): {"split": split, "seed": seed}
            for split in SPLITS
            for seed in self.plain_seeds
        }
        return plain | {
            seeded(f"{split}-{eps:g}", seed): {
                "split": split, "protection": "rr", "eps": eps, "seed": seed
            }
            for split in SPLITS
            for eps in LARGE
            for seed in seeds_at(scale, eps)
        }  # fmt: skip

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Compare both splits with their own runs without protection."""
        iid, shards = (lost_accuracy(runs, {f"{s}-{eps:g}": s for eps in LARGE}) for s in SPLITS)
        several = (
            f" Under RR at epsilon {listed(REPEATED, 1)}, it is the mean of {len(SEEDS)} seeds."
            if scale == "full"
            else ""
        )
        ran = (
            "Non-IID is McMahan's split, which the source cites: each client gets two shards of "
            "the examples sorted by label. These runs have twice the rounds. Without protection, "
            f"{mean_of(len(self.plain_seeds))}, because {len(SEEDS)} seeds could not tell the "
            f"splits apart at full size.{several} The other runs have one seed."
        )
        plot = rates_by(
            "noniid", "RR: accuracy lost, by the split of the examples", Axis("epsilon", log=True),
            LARGE, {"dealt at random": iid, "two labels a client": shards},
        )  # fmt: skip
        verdicts = [*few_labels_cost_without(runs), few_labels_cost(iid, shards)]
        return Outcome(ran, verdicts, (), [plot], seeds=0)

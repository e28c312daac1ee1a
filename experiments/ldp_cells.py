"""Figure 2 of 002: the more cells, the less accuracy is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments import ldp_jobs
from experiments.ldp_jobs import EPSILONS, LDPExperiment, Split
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.studies.experiment import Outcome, Scale, Tell, Verdict
from fedveil.studies.several_runs import Arm, Runs, falls, listed, loss_rate, trained

CELLS = (1, 3, 10, 30, 100)
SPLITS: tuple[Split, ...] = ("iid", "shards")
#: Series of the figure: the split of examples, and epsilon.
SERIES: tuple[tuple[Split, float], ...] = (
    ("iid", EPSILONS[7]),
    ("shards", EPSILONS[7]),
    ("iid", EPSILONS[6]),
)
_SLACK = 0.03


class LDPCells(LDPExperiment):
    """Accuracy-loss rate of RR by the number of cells."""

    name = "ldp-cells"
    what = "What the number of cells costs in accuracy, for both ways of dealing examples."
    source = "002, figure 2"

    def arms(self, scale: Scale) -> list[Arm]:
        """Return a run without protection for each split, and the series."""
        plain = [Arm(s, ldp_jobs.job(scale, "lenet-mnist", s, split=s)) for s in SPLITS]
        return plain + [
            Arm(name, ldp_jobs.job(scale, "lenet-mnist", name, split=split, protection="rr",
                                   eps=eps, cells=cells))
            for split, eps in SERIES
            for cells in CELLS
            for name in [_name(split, eps, cells)]
        ]  # fmt: skip

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Compute the loss rate along each series."""
        arms = self.arms(scale)
        runs = trained(folder, arms, tell)
        ran = ldp_jobs.told(
            scale, ["lenet-mnist"],
            "The source does not say at which epsilon it varied the cells: here at its largest, "
            f"{EPSILONS[7]:g}, and at {EPSILONS[6]:g}. Values are rounded to the nearest state, "
            "as it does.",
        )  # fmt: skip
        rates = {series: _rates(runs, *series) for series in SERIES}
        verdicts = [verdict(series, rates[series]) for series in SERIES]
        return Outcome(ran, verdicts, (), [_plot(rates)])


def _name(split: str, eps: float, cells: int) -> str:
    return f"{split}-{eps:g}-{cells}"


def _rates(runs: Runs, split: str, eps: float) -> list[float]:
    return [loss_rate(runs[split], runs[_name(split, eps, cells)]) for cells in CELLS]


def verdict(series: tuple[Split, float], rates: Sequence[float]) -> Verdict:
    """Judge whether the loss falls all the way to the most cells."""
    split, eps = series
    best = CELLS[min(range(len(CELLS)), key=lambda i: rates[i])]
    return Verdict.of(
        falls(rates, _SLACK),
        f"{split}, epsilon {eps:g}: accuracy-loss rate at {', '.join(map(str, CELLS))} cells",
        "falls", listed(rates),
        same="at this epsilon rounding costs more than the noise, which grows with the cells too",
        other=f"the noise grows with the cells: its variance is (cells + 1)(2 cells + 1)/(3 cells) "
        f"times that of a bit, and beyond {best} cells that outweighs the finer rounding",
    )  # fmt: skip


def _plot(rates: dict[tuple[Split, float], list[float]]) -> Plot:
    curves = [
        Curve(f"{split}, epsilon {eps:g}", [*map(float, CELLS)], values, marks=True)
        for (split, eps), values in rates.items()
    ]
    return Plot("cells", "RR: accuracy lost by the number of cells", Axis("cells", log=True),
                Axis("accuracy-loss rate"), curves)  # fmt: skip

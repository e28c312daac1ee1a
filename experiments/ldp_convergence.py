"""Figure 1 of 002: the larger epsilon, the sooner a model converges."""

from __future__ import annotations

from pathlib import Path

from experiments import ldp_jobs
from experiments.ldp_jobs import EPSILONS, MECHANISMS, LDPExperiment
from fedveil.pages.plot import Axis, Plot
from fedveil.pages.table import Table
from fedveil.studies.experiment import Outcome, Scale, Tell, Verdict
from fedveil.studies.several_runs import (
    Arm,
    Runs,
    accuracy,
    curve,
    falls,
    first_round,
    listed,
    mean_accuracy,
    trained,
)

SHOWN = EPSILONS[4:]
#: The accuracy at which rounds are compared, as a share of the accuracy without protection.
_SHARE = 0.8
#: Allowed reversal of two runs' mean accuracies: one seed is noisy.
_SLACK = 0.02


class LDPConvergence(LDPExperiment):
    """Accuracy round by round under RR and OUE, at several epsilons."""

    name = "ldp-convergence"
    what = "How soon a model converges under RR and OUE, by epsilon."
    source = "002, figure 1"

    def arms(self, scale: Scale) -> list[Arm]:
        """Return a run without protection, and each mechanism at each epsilon."""
        plain = Arm("plain", ldp_jobs.job(scale, "lenet-mnist", "plain"))
        return [plain] + [
            Arm(name, ldp_jobs.job(scale, "lenet-mnist", name, protection=kind, eps=eps))
            for kind in MECHANISMS
            for eps in SHOWN
            for name in [f"{kind}-{eps:g}"]
        ]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Compare both mechanisms with the run without protection."""
        arms = self.arms(scale)
        runs = trained(folder, arms, tell)
        ran = ldp_jobs.told(
            scale, ["lenet-mnist"],
            f"Figure 1 is a picture alone, without its epsilons: here {listed(SHOWN, 1)}.",
        )  # fmt: skip
        verdicts = [verdict(runs, kind) for kind in MECHANISMS]
        return Outcome(ran, verdicts, [_rounds(runs)], [_plot(runs, kind) for kind in MECHANISMS])


def verdict(runs: Runs, kind: str) -> Verdict:
    """Judge whether a larger epsilon converges faster."""
    speeds = [mean_accuracy(runs[f"{kind}-{eps:g}"]) for eps in SHOWN]
    return Verdict.of(
        falls([-speed for speed in speeds], _SLACK),
        f"{kind}: mean accuracy over all rounds, by epsilon {listed(SHOWN, 1)}",
        "rises with epsilon", listed(speeds),
        same="less noise, sooner there",
        other="it does not rise from each epsilon to the next",
    )  # fmt: skip


def _rounds(runs: Runs) -> Table:
    target = _SHARE * accuracy(runs["plain"])
    rows = [
        (
            name,
            f"{accuracy(run):.3f}",
            f"{first_round(run, 'accuracy', lambda a: a >= target) or 'never'}",
        )
        for name, run in runs.items()
    ]
    columns = ("run", "accuracy, last five tests", f"rounds to {target:.3f}")
    return Table(columns, rows, f"{_SHARE:.0%} of the accuracy without protection.")


def _plot(runs: Runs, kind: str) -> Plot:
    curves = [curve(f"epsilon {eps:g}", runs[f"{kind}-{eps:g}"]) for eps in SHOWN]
    curves.append(curve("without protection", runs["plain"], dashed=True))
    return Plot(kind, f"{kind.upper()}: convergence by epsilon of a bit", Axis("round"),
                Axis("test accuracy"), curves)  # fmt: skip

"""Figure 5 of source 002: an adaptive epsilon beside fixed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from experiments.arms import Runs, accuracy, curve, mean_accuracy, trained
from experiments.evidence import SEEDS, mean_of, of_seeds, seeded, with_interval
from experiments.experiment import Outcome, Scale, Tell
from experiments.ldp_claims import adapting_helps
from experiments.ldp_jobs import (
    EPSILONS,
    LOCATION,
    ArmArguments,
    LDPFigure,
    Task,
    estimate_s,
    title,
)
from experiments.saved_results import last_checkpoint
from fedveil.pages.plot import Axis, Plot
from fedveil.pages.table import Table


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
    #: The number of seeds of Location-30's small net at scale medium, where three did not decide.
    many = 8
    legend: Mapping[str, str] = {
        "fixed": "fixed",
        "adaptive": "adaptive",
        "same-total": "fixed, as much in total as adaptive",
        "plain": "without protection",
    }

    def table(self, scale: Scale) -> ArmArguments:
        """Return each task's runs: without protection, at a fixed, and at an adaptive epsilon."""
        kinds: ArmArguments = {
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
            for seed in (self._seeds(scale, task) if kind != "plain" else SEEDS[:1])
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
            for seed in self._seeds(scale, task)
        ]  # fmt: skip
        runs = {**runs, **trained(folder, more, tell)}
        spent |= {arm.name: mean_eps(folder / arm.name) for arm in more}
        lenet = self._eps(scale, tasks[0])
        apart = f" for LeNet and {self.eps:g} for the dense nets" if lenet != self.eps else ""
        ran = (
            f"The epsilon of the next round is eps / A_s, where A_s is the angular similarity of "
            f"the last two models. eps is {lenet:g}{apart}. The source compares this with eps in "
            f"every round. Here it is also compared with a fixed epsilon that spends the same "
            f"total. "
            f"{self._repeated(scale, tasks)} The runs without protection have one seed, and the "
            f"plots show one."
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
        return Outcome(ran, verdicts, [table], plots, seeds=0)

    def _repeated(self, scale: Scale, tasks: Sequence[Task]) -> str:
        """Return sentences about the seeds of the runs."""
        said = f"Under RR, {mean_of()}."
        if any(len(self._seeds(scale, task)) > len(SEEDS) for task in tasks):
            said += f" `{LOCATION}` has {self.many} seeds, because {len(SEEDS)} did not decide."
        return said

    def _seeds(self, scale: Scale, task: Task) -> Sequence[int]:
        """Return the seeds of a task's runs: `many` for Location-30 at scale medium, or three."""
        return range(self.many) if (scale, task) == ("medium", LOCATION) else SEEDS

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

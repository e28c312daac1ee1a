"""Figure 5 of 002: epsilon divided by the similarity of two successive models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from experiments import ldp_jobs
from experiments.ldp_jobs import EPSILONS, TASKS, LDPExperiment, Task
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.errors import RunFolderError
from fedveil.pages.plot import Axis, Plot
from fedveil.pages.table import Table
from fedveil.record.run_folder import RunFolder
from fedveil.studies.experiment import Outcome, Scale, Tell, Verdict
from fedveil.studies.several_runs import Arm, Runs, accuracy, curve, mean_accuracy, trained

#: An epsilon for each task at which it converges, but not at once.
EPS: dict[Task, float] = {"lenet-mnist": EPSILONS[5], "dnn-purchase100": EPSILONS[6]}
_LEGEND = {
    "fixed": "fixed",
    "adaptive": "adaptive",
    "same-total": "fixed, as much in total as adaptive",
    "plain": "without protection",
}
#: About half an hour.
MEDIUM_ROUNDS = 100
#: Mean accuracies within this distance count as equal: one seed is noisy.
_SLACK = 0.02


class LDPAdaptive(LDPExperiment):
    """Accuracy round by round under RR with a fixed epsilon and with the adaptive one."""

    name = "ldp-adaptive"
    what = "What the adaptive epsilon does for convergence, and what it spends."
    source = "002, figure 5 and algorithm 2"
    scales = get_args(Scale)

    def arms(self, scale: Scale) -> list[Arm]:
        """Return runs of each task: without protection, fixed epsilon, and adaptive from it."""
        kinds: dict[str, dict[str, Any]] = {
            "plain": {"protection": "not_encrypt"},
            "fixed": {"protection": "rr"},
            "adaptive": {"protection": "rr", "adaptive": True},
        }
        return [self._arm(scale, task, kind, EPS[task], **more)
                for task in TASKS for kind, more in kinds.items()]  # fmt: skip

    def _arm(self, scale: Scale, task: Task, kind: str, eps: float, **more: Any) -> Arm:
        name = f"{task}-{kind}"
        more["medium_rounds"] = MEDIUM_ROUNDS
        return Arm(name, ldp_jobs.job(scale, task, name, eps=eps, **more))

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the arms, and one more per task: at an equal total."""
        jobs = [arm.job for arm in self.arms(scale)]
        return ldp_jobs.estimate_s(scale, [*jobs, *jobs[2::3]])

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Run the arms, then each task with a fixed epsilon at the adaptive one's total."""
        arms = self.arms(scale)
        runs = dict(trained(folder, arms, tell))
        spent = {name: mean_eps(folder / name) for name in runs if not name.endswith("plain")}
        more = [
            self._arm(scale, task, "same-total", spent[f"{task}-adaptive"], protection="rr")
            for task in TASKS
        ]
        runs |= trained(folder, more, tell)
        spent |= {arm.name: mean_eps(folder / arm.name) for arm in more}
        ran = ldp_jobs.told(
            scale, TASKS,
            "Epsilon of the next round is eps / A_s, A_s the angular similarity of two successive "
            f"models; eps is {EPS['lenet-mnist']:g} (LeNet) and {EPS['dnn-purchase100']:g} "
            "(Purchase-100). The source compares with the same eps kept fixed; here also with a "
            "fixed one that spends as much in total.",
            medium_rounds=MEDIUM_ROUNDS,
        )  # fmt: skip
        plots = [_plot(scale, runs, task) for task in TASKS]
        return Outcome(ran, list(judged(runs, spent)), [_table(runs, spent)], plots)


def mean_eps(folder: Path) -> float:
    """Return RR's epsilon per bit, averaged over a run's rounds: its total by plain addition."""
    opened = RunFolder.reopen(folder)
    try:
        saved = Checkpoint.read(opened)
    finally:
        opened.close()
    if saved is None:
        raise RunFolderError(f"{folder} has no checkpoint of its last round")
    return float(saved.protection["spent"]) / (2 * len(saved.weights) * saved.round)


def judged(runs: Runs, spent: dict[str, float]) -> Iterator[Verdict]:
    """Judge the source's claims about the strategy on these runs."""
    speed = {name: mean_accuracy(run) for name, run in runs.items()}
    gains = {task: speed[f"{task}-adaptive"] - speed[f"{task}-fixed"] for task in TASKS}
    for task in TASKS:
        yield Verdict.of(
            gains[task] > _SLACK, f"{task}: mean accuracy over all rounds, fixed and adaptive",
            "adaptive is faster", f"{speed[f'{task}-fixed']:.3f}, {speed[f'{task}-adaptive']:.3f}",
            same="it adds less noise", other="no faster than one seed explains",
        )  # fmt: skip
    lenet, dnn = (gains[task] for task in TASKS)
    yield Verdict.of(
        lenet > dnn, "gain of LeNet, gain of the net of Purchase-100",
        "LeNet gains more", f"{lenet:+.3f}, {dnn:+.3f}",
        same="its successive models differ more",
        other="how alike successive models are depends on the noise in them as much as on what "
        "they learnt",
    )  # fmt: skip
    for task in TASKS:
        grown = spent[f"{task}-adaptive"] / spent[f"{task}-fixed"]
        yield Verdict.of(
            grown <= 1.0001, f"{task}: the total budget", "unchanged", f"{grown:.2f} times as much",
            same="every quotient was 1", other="A_s is at most 1, so that eps / A_s is never below "
            "eps: all it can do is to spend more",
        )  # fmt: skip
        at_total = speed[f"{task}-adaptive"] - speed[f"{task}-same-total"]
        yield Verdict.of(
            at_total > _SLACK, f"{task}: mean accuracy over all rounds, adaptive less a fixed "
            "epsilon of the same total", "adaptive is faster", f"{at_total:+.3f}",
            same="it spends where it matters",
            other="no more than one seed explains: what it gains, it gains by spending more, and "
            "so does a larger fixed epsilon",
        )  # fmt: skip


def _table(runs: Runs, spent: dict[str, float]) -> Table:
    rows = [
        (name, f"{accuracy(run):.3f}", f"{mean_accuracy(run):.3f}",
         f"{spent[name]:.3f}" if name in spent else "")
        for name, run in runs.items()
    ]  # fmt: skip
    columns = ("run", "accuracy, last five tests", "mean over all rounds", "mean epsilon of a bit")
    return Table(columns, rows, "What each run reached, and what it spent.")


def _plot(scale: Scale, runs: Runs, task: Task) -> Plot:
    curves = [
        curve(legend, runs[f"{task}-{kind}"], dashed=kind == "plain")
        for kind, legend in _LEGEND.items()
    ]
    title = f"{ldp_jobs.title(scale, task)}: a fixed and an adaptive epsilon"
    return Plot(task, title, Axis("round"), Axis("test accuracy"), curves)

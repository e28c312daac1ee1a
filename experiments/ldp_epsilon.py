"""Figure 3 of 002: the larger epsilon, the less accuracy is lost; and the leakage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from experiments import ldp_jobs
from experiments.ldp_jobs import EPSILONS, MECHANISMS, TASKS, LDPExperiment, Task
from experiments.leakage import leakage
from fedveil.federated.job import Job
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.privacy.finding import Measured
from fedveil.studies.experiment import Outcome, Scale, Tell, Verdict
from fedveil.studies.several_runs import Arm, Runs, accuracy, falls, listed, loss_rate, trained

#: Some of the four epsilons that are too small to learn anything are omitted below full.
SHOWN: dict[Scale, tuple[float, ...]] = {
    "small": (EPSILONS[0], EPSILONS[2], *EPSILONS[4:]),
    "medium": (EPSILONS[0], *EPSILONS[4:]),
    "full": EPSILONS,
}
#: About half an hour.
MEDIUM_ROUNDS = 50
#: Allowed rise of a loss rate from an epsilon to the next that still counts as falling: one seed.
_SLACK = 0.05
#: Values for "nearly nothing", "unusable" and "nearly the same".
_NOTHING, _UNUSABLE, _ALIKE = 0.05, 0.5, 0.1
#: The axis of the source's leakage rate.
_LEAKAGE = (0.45, 0.75)

Rates = dict[tuple[Task, str], list[float]]


class LDPEpsilon(LDPExperiment):
    """Accuracy-loss rate and leakage rate by epsilon, for both tasks and both mechanisms."""

    name = "ldp-epsilon"
    what = "What epsilon costs in accuracy, and what a membership attack still finds."
    source = "002, figure 3"
    scales = get_args(Scale)

    def arms(self, scale: Scale) -> list[Arm]:
        """Return, for each task, a run without protection, and each mechanism at each epsilon."""
        return [
            *(Arm(task, _job(scale, task, task)) for task in TASKS),
            *(
                Arm(name, _job(scale, task, name, protection=kind, eps=eps))
                for task in TASKS
                for kind in MECHANISMS
                for eps in SHOWN[scale]
                for name in [_name(task, kind, eps)]
            ),
        ]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Run everything, and the attack on the models of RR."""
        arms = self.arms(scale)
        runs = trained(folder, arms, tell)
        tell("membership attacks")
        shown = SHOWN[scale]
        leaks = {task: _leaks(folder, task, shown) for task in TASKS}
        rates: Rates = {
            (task, kind): [loss_rate(runs[task], runs[_name(task, kind, e)]) for e in shown]
            for task in TASKS
            for kind in MECHANISMS
        }
        ran = ldp_jobs.told(
            scale, TASKS,
            f"Epsilons: {', '.join(f'{eps:g}' for eps in shown)}. The leakage rate is the balanced "
            "accuracy of a loss threshold on the final model, "
            "whose attacker knows half of the examples.",
            medium_rounds=MEDIUM_ROUNDS,
        )  # fmt: skip
        verdicts = [*_baselines(runs), *judged(rates), *_leak_verdicts(leaks)]
        plots = [*(_plot(scale, task, rates) for task in TASKS), _leak_plot(scale, leaks)]
        return Outcome(ran, verdicts, (), plots)


def _job(scale: Scale, task: Task, name: str, **more: Any) -> Job:
    return ldp_jobs.job(scale, task, name, medium_rounds=MEDIUM_ROUNDS, **more)


def _name(task: str, kind: str, eps: float) -> str:
    return f"{task}-{kind}-{eps:g}"


def _leaks(folder: Path, task: str, shown: Sequence[float]) -> list[Measured]:
    """Return the leakage of the model without protection, and of RR's at each epsilon."""
    names = [task, *(_name(task, "rr", eps) for eps in shown)]
    return [leakage(folder / name) for name in names]


def _baselines(runs: Runs) -> Iterator[Verdict]:
    for task in TASKS:
        reached, theirs = accuracy(runs[task]), ldp_jobs.BASELINES[task, "iid"]
        yield Verdict.of(
            abs(reached - theirs) <= 0.01, f"{task}: accuracy without protection",
            f"{theirs:.4f}", f"{reached:.4f}",
            same="within a point", other="the data, the model or the rounds are not the source's",
        )  # fmt: skip


def judged(rates: Rates) -> Iterator[Verdict]:
    """Judge the trends of the source's text by these loss rates."""
    for (task, kind), values in rates.items():
        yield Verdict.of(
            falls(values, _SLACK), f"{task}, {kind}: accuracy-loss rate by epsilon",
            "falls", listed(values),
            same="less noise, less lost", other="it rises somewhere by more than one seed explains",
        )  # fmt: skip
    ends = [values[-1] for values in rates.values()]
    yield Verdict.of(
        max(ends) <= _NOTHING, "the largest epsilon", "nearly nothing is lost", listed(ends),
        same=f"at most {_NOTHING:g} of the accuracy",
        other="noise and rounding still cost",
    )  # fmt: skip
    starts = [values[0] for values in rates.values()]
    yield Verdict.of(
        min(starts) >= _UNUSABLE, "the smallest epsilon", "the model does not converge",
        listed(starts),
        same=f"at least {_UNUSABLE:g} of the accuracy is lost", other="it still learns",
    )  # fmt: skip
    for task in TASKS:
        apart = [oue - rr for rr, oue in zip(rates[task, "rr"], rates[task, "oue"], strict=True)]
        yield Verdict.of(
            max(map(abs, apart)) <= _ALIKE, f"{task}: OUE's loss rate less RR's",
            "nearly 0", listed(apart),
            same=f"they lie at most {_ALIKE:g} apart",
            other="at equal epsilon OUE's estimate has about four times RR's variance, or more: a "
            "report of RR costs twice as much",
        )  # fmt: skip


def _leak_verdicts(leaks: dict[Task, list[Measured]]) -> Iterator[Verdict]:
    for task, measured in leaks.items():
        values = [leak.value for leak in measured]
        yield Verdict.of(
            _LEAKAGE[0] <= min(values) and max(values) <= _LEAKAGE[1],
            f"{task}: leakage rate without protection, and of RR by epsilon",
            f"an axis from {_LEAKAGE[0]:g} to {_LEAKAGE[1]:g}", listed(values),
            same="all lie on that axis", other="the model is better known by heart, or less",
        )  # fmt: skip


def _plot(scale: Scale, task: Task, rates: Rates) -> Plot:
    curves = [Curve(kind, SHOWN[scale], rates[task, kind], marks=True) for kind in MECHANISMS]
    title = f"{ldp_jobs.title(scale, task)}: accuracy lost by epsilon of a bit"
    return Plot(task, title, Axis("epsilon", log=True), Axis("accuracy-loss rate"), curves)


def _leak_plot(scale: Scale, leaks: dict[Task, list[Measured]]) -> Plot:
    curves, shown = [], SHOWN[scale]
    for task, (plain, *noisy) in leaks.items():
        low, high = [leak.low for leak in noisy], [leak.high for leak in noisy]
        values = [leak.value for leak in noisy]
        curves.append(Curve(ldp_jobs.title(scale, task), shown, values, low, high, marks=True))
        level = [plain.value] * len(shown)
        curves.append(Curve(f"{ldp_jobs.title(scale, task)}, plain", shown, level, dashed=True))
    return Plot("leakage", "What a membership attack finds, under RR", Axis("epsilon", log=True),
                Axis("leakage rate"), curves,
                "Shaded: 95% intervals. Guessing is right half the time.")  # fmt: skip

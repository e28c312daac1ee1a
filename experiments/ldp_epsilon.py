"""Figure 3 of source 002: what epsilon costs in accuracy, and what an attack still finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TypeAlias, get_args

from experiments.arms import Runs, accuracy
from experiments.evidence import (
    SEEDS,
    Lost,
    all_hold,
    decided,
    idle,
    near,
    of_seeds,
    seeded,
    whole_interval,
    with_interval,
)
from experiments.experiment import Outcome, Scale, Tell, Verdict
from experiments.ldp_claims import falling
from experiments.ldp_figures import lost_accuracy, rates_by
from experiments.ldp_jobs import (
    BASELINES,
    EPSILONS,
    LARGE,
    LOCATION,
    MECHANISMS,
    ArmArguments,
    LDPFigure,
    Task,
    labels,
    seeds_at,
    source_task,
    title,
)
from experiments.leakage import leakage, over_seeds
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.privacy.finding import CONFIDENCE, Measured

#: For each task, the leakage rate without protection, and then those of its runs under RR.
Leaks: TypeAlias = Mapping[Task, Sequence[Measured]]
#: For each task and mechanism, what is lost at each epsilon.
Losses: TypeAlias = Mapping[tuple[Task, str], Lost]


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

    def table(self, scale: Scale) -> ArmArguments:
        """Return each task's runs: without protection, and of each mechanism at each epsilon."""
        tasks = self.tasks(scale)
        seeds = SEEDS if scale != "small" else SEEDS[:1]
        plain = {
            seeded(task, seed): {"task": task, "seed": seed} for task in tasks for seed in seeds
        }
        return {
            **plain,
            **{
                seeded(f"{task}-{kind}-{eps:g}", seed): {
                    "task": task, "protection": kind, "eps": eps, "seed": seed
                }
                for task in tasks
                for kind in MECHANISMS
                for eps in self.shown[scale]
                for seed in seeds_at(scale, eps, task)
            },
        }  # fmt: skip

    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Judge all runs, and the attack on the models of RR."""
        tell("membership attacks")
        shown, tasks = self.shown[scale], self.tasks(scale)
        leaks: Leaks = {
            task: [_leakage(runs, name) for name in
                   [task, *(f"{task}-rr-{eps:g}" for eps in shown)]]
            for task in tasks
        }  # fmt: skip
        losses = {
            (task, kind): lost_accuracy(
                runs, {f"{task}-{kind}-{eps:g}": task for eps in shown}, labels(scale, task)
            )
            for task in tasks
            for kind in MECHANISMS
        }
        plots = [
            rates_by(
                task, f"{title(scale, task)}: accuracy lost by epsilon of a bit",
                Axis("epsilon", log=True), shown, {kind: losses[task, kind] for kind in MECHANISMS},
            )
            for task in tasks
        ]  # fmt: skip
        baselines = baselines_reached(scale, runs, tasks)
        of_rr = {task: losses[task, "rr"] for task in tasks}
        verdicts = [*baselines, *epsilon_decides(losses), *leakage_within(leaks, of_rr)]
        plots.append(_leak_plot(scale, shown, leaks))
        return Outcome(self._ran(scale), verdicts, (), plots, seeds=1 if scale == "small" else 0)

    def _ran(self, scale: Scale) -> str:
        ran = (
            f"Epsilons: {', '.join(f'{eps:g}' for eps in self.shown[scale])}. The leakage rate is "
            f"the balanced accuracy of a membership attack that compares the final model's loss on "
            f"an example with a threshold. The attacker chooses the threshold on one half of the "
            f"examples, of which it knows the members. The interval of a single model's rate is "
            f"over the attacked examples."
        )
        if scale == "small":
            return ran
        lenet, dense = (
            min(eps for eps in EPSILONS if len(seeds_at(scale, eps, task)) > 1)
            for task in ("lenet-mnist", LOCATION)
        )
        return (
            f"{ran} A figure with a {CONFIDENCE:.0%} confidence interval is the mean of "
            f"{len(SEEDS)} seeds: without protection, and from epsilon {lenet:g} (LeNet) or "
            f"{dense:g} (dense nets) on. The other runs have one seed."
        )


def _leakage(runs: Runs, name: str) -> Measured:
    return over_seeds([leakage(run.folder) for run in of_seeds(runs, name)])


def _leak_plot(scale: Scale, shown: Sequence[float], leaks: Leaks) -> Plot:
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


def baselines_reached(scale: Scale, runs: Runs, tasks: Sequence[Task]) -> Iterator[Verdict]:
    """Judge the accuracies without protection. The source states none for Location-30."""
    for task in tasks:
        if task == LOCATION:
            continue
        reached = [accuracy(run) for run in of_seeds(runs, task)]
        theirs = BASELINES[source_task(task), "iid"]
        agrees, nothing = near([each - theirs for each in reached], 0.01)
        yield Verdict.of(
            agrees, f"{task}: accuracy without protection", f"{theirs:.4f}",
            with_interval(reached, 4), held_to=f"at most 0.01 apart{whole_interval(len(reached))}",
            same="less than a percentage point apart",
            other="the data, the model or the rounds are not the source's",
            nothing=idle({task: min(reached)}, labels(scale, task)) or nothing,
        )  # fmt: skip


def epsilon_decides(losses: Losses) -> Iterator[Verdict]:
    """Judge the trends that the source's text states, by accuracy-loss rates."""
    for (task, kind), lost in losses.items():
        yield falling(
            lost, 0.05, f"{task}, {kind}: accuracy-loss rate by epsilon",
            same="with less noise, less accuracy is lost",
            other="it rises somewhere by more than chance explains",
        )  # fmt: skip
    yield _nearly_nothing(losses)
    yield _nothing_converges(losses)
    for task in dict.fromkeys(task for task, _ in losses):
        yield _alike(task, losses[task, "rr"], losses[task, "oue"])


def _nearly_nothing(losses: Losses) -> Verdict:
    """Judge whether the largest epsilon costs nearly no accuracy."""
    most = 0.05
    collapsed = [f"{task}, {kind}" for (task, kind), lost in losses.items() if not lost.learnt[-1]]
    ends = [lost.by_seed[-1] for lost in losses.values()]
    little, unsure = all_hold(_up_to(each, most) for each in ends)
    idle_ends = f"at chance level: {'; '.join(collapsed)}" if collapsed else ""
    return Verdict.of(
        little, "the largest epsilon", "nearly nothing is lost",
        ", ".join(map(with_interval, ends)),
        held_to=f"each at most {most:g}, with its whole interval",
        same=f"at most {most:g} of the accuracy", other="noise and rounding still cost accuracy",
        nothing=_without(losses.values()) or idle_ends or unsure,
    )  # fmt: skip


def _up_to(values: Sequence[float], bound: float) -> tuple[bool, str]:
    """Decide whether a figure is at most `bound`. `values` has it for each seed."""
    above, unsure = decided([value - bound for value in values], slack=0.0)
    return not (above or unsure), unsure


def _nothing_converges(losses: Losses) -> Verdict:
    """Judge whether the model does not converge at the smallest epsilon."""
    unusable = 0.5
    starts = [lost.by_seed[0] for lost in losses.values()]
    return Verdict.of(
        min(map(mean, starts)) >= unusable, "the smallest epsilon", "the model does not converge",
        ", ".join(map(with_interval, starts)), held_to=f"each at least {unusable:g}",
        same=f"at least {unusable:g} of the accuracy is lost", other="it still learns",
        nothing=_without(losses.values()),
    )  # fmt: skip


def _without(losses: Iterable[Lost]) -> str:
    return next((lost.without for lost in losses if lost.without), "")


def _alike(task: Task, rr: Lost, oue: Lost) -> Verdict:
    """Judge whether RR and OUE lose nearly the same at every epsilon at which both learn."""
    bound = 0.1
    apart = [[b - a for a, b in zip(*pair, strict=True)]
             for pair in zip(rr.by_seed, oue.by_seed, strict=True)]  # fmt: skip
    both = [a and b for a, b in zip(rr.learnt, oue.learnt, strict=True)]
    compared = [each for each, ok in zip(apart, both, strict=True) if ok]
    agrees, unsure = all_hold(near(each, bound) for each in compared)
    silent = "" if compared else "at no epsilon do both end above chance level"
    whole = whole_interval(max(map(len, compared), default=1))
    return Verdict.of(
        agrees, f"{task}: OUE's loss rate minus RR's", "nearly 0",
        ", ".join(map(with_interval, apart)),
        held_to=f"at most {bound:g} apart{whole}, where both end above chance level",
        same=f"they are at most {bound:g} apart",
        other="at equal epsilon, OUE's estimate has at least about four times RR's variance, "
        "but a report of RR costs twice as much",
        nothing=rr.without or silent or unsure,
    )  # fmt: skip


def leakage_within(leaks: Leaks, of_rr: Mapping[Task, Lost]) -> Iterator[Verdict]:
    """Judge whether the leakage rates lie on the axis of the source's figure.

    Nothing can be judged from an attack that only guesses even without protection, or from a model
    at chance level. `of_rr` says which models those are.
    """
    low, high = 0.45, 0.75
    for task, (plain, *noisy) in leaks.items():
        lost = of_rr[task]
        pairs = [*zip(noisy, lost.learnt, strict=True)]
        values = [plain.value, *(leak.value for leak, learnt in pairs if learnt)]
        shown = [_rate(plain), *(_rate(leak) if learnt else f"({leak.value:.3f})"
                                 for leak, learnt in pairs)]  # fmt: skip
        guesses = (
            f"without protection the leakage rate is {_rate(plain)}, an interval that contains the "
            f"0.5 of guessing"
        )
        yield Verdict.of(
            low <= min(values) and max(values) <= high,
            f"{task}: leakage rate without protection, and of RR by epsilon",
            f"an axis from {low:g} to {high:g}", ", ".join(shown),
            held_to="those of models above chance level lie on that axis. A rate in brackets is "
            "of a model at chance level, which has nothing to leak",
            same="without protection, the whole interval lies above guessing; these rates lie on "
            "the axis",
            other="the model memorises more or less than the source's",
            nothing=lost.without or lost.few or ("" if plain.low > 0.5 else guesses),
        )  # fmt: skip


def _rate(leak: Measured) -> str:
    return f"{leak.value:.3f} [{leak.low:.3f}, {leak.high:.3f}]"

"""The claims of 002 about its figures, each judged by the runs' figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments.ldp_jobs import BASELINES, CELLS, LARGE, SPLITS, TASKS, Task
from fedveil.privacy.finding import Measured
from fedveil.studies.experiment import Verdict
from fedveil.studies.several_runs import Runs, accuracy, falls, listed, mean_accuracy

#: Loss rates by task and mechanism.
Rates = Mapping[tuple[Task, str], Sequence[float]]
#: Mean accuracies within this distance count as equal: one seed is noisy.
_SLACK = 0.02


def _falling(values: Sequence[float], slack: float, what: str, *, same: str, other: str) -> Verdict:
    """Judge whether loss rates fall all the way, but for rises up to `slack`."""
    ours = listed(values)
    return Verdict.of(falls(values, slack), what, "falls", ours, same=same, other=other)


def converges(runs: Runs, kind: str) -> Verdict:
    """Judge whether a larger epsilon converges faster."""
    speeds = [mean_accuracy(runs[f"{kind}-{eps:g}"]) for eps in LARGE]
    return Verdict.of(
        falls([-speed for speed in speeds], _SLACK),
        f"{kind}: mean accuracy over all rounds, by epsilon {listed(LARGE, 1)}",
        "rises with epsilon", listed(speeds),
        same="less noise, sooner there",
        other="it does not rise from each epsilon to the next",
    )  # fmt: skip


def cells_help(series: tuple[str, float], rates: Sequence[float]) -> Verdict:
    """Judge whether the loss falls all the way to the most cells."""
    split, eps = series
    best = min(zip(rates, CELLS, strict=True))[1]
    return _falling(
        rates, 0.03,
        f"{split}, epsilon {eps:g}: accuracy-loss rate at {', '.join(map(str, CELLS))} cells",
        same="at this epsilon rounding costs more than the noise, which grows with the cells too",
        other=f"the noise grows with the cells: its variance is (cells + 1)(2 cells + 1)/(3 cells) "
        f"times that of a bit, and beyond {best} cells that outweighs the finer rounding",
    )  # fmt: skip


def baselines_reached(runs: Runs) -> Iterator[Verdict]:
    """Judge the accuracies without protection."""
    for task in TASKS:
        reached, theirs = accuracy(runs[task]), BASELINES[task, "iid"]
        yield Verdict.of(
            abs(reached - theirs) <= 0.01, f"{task}: accuracy without protection",
            f"{theirs:.4f}", f"{reached:.4f}",
            same="within a point", other="the data, the model or the rounds are not the source's",
        )  # fmt: skip


def epsilon_decides(rates: Rates) -> Iterator[Verdict]:
    """Judge the trends of the source's text by these loss rates."""
    nothing, unusable, alike = 0.05, 0.5, 0.1
    for (task, kind), values in rates.items():
        yield _falling(
            values, 0.05, f"{task}, {kind}: accuracy-loss rate by epsilon",
            same="less noise, less lost", other="it rises somewhere by more than one seed explains",
        )  # fmt: skip
    ends = [values[-1] for values in rates.values()]
    yield Verdict.of(
        max(ends) <= nothing, "the largest epsilon", "nearly nothing is lost", listed(ends),
        same=f"at most {nothing:g} of the accuracy", other="noise and rounding still cost",
    )  # fmt: skip
    starts = [values[0] for values in rates.values()]
    yield Verdict.of(
        min(starts) >= unusable, "the smallest epsilon", "the model does not converge",
        listed(starts),
        same=f"at least {unusable:g} of the accuracy is lost", other="it still learns",
    )  # fmt: skip
    for task in TASKS:
        apart = [oue - rr for rr, oue in zip(rates[task, "rr"], rates[task, "oue"], strict=True)]
        yield Verdict.of(
            max(map(abs, apart)) <= alike, f"{task}: OUE's loss rate less RR's",
            "nearly 0", listed(apart),
            same=f"they lie at most {alike:g} apart",
            other="at equal epsilon OUE's estimate has about four times RR's variance, or more: a "
            "report of RR costs twice as much",
        )  # fmt: skip


def leakage_within(leaks: Mapping[Task, Sequence[Measured]]) -> Iterator[Verdict]:
    """Judge whether every leakage rate lies on the axis of the source's figure."""
    low, high = 0.45, 0.75
    for task, measured in leaks.items():
        values = [leak.value for leak in measured]
        yield Verdict.of(
            low <= min(values) and max(values) <= high,
            f"{task}: leakage rate without protection, and of RR by epsilon",
            f"an axis from {low:g} to {high:g}", listed(values),
            same="all lie on that axis", other="the model is better known by heart, or less",
        )  # fmt: skip


def clients_help(kind: str, numbers: Sequence[int], rates: Sequence[float]) -> Verdict:
    """Judge whether the loss falls with the number of clients."""
    return _falling(
        rates, 0.05, f"{kind}: accuracy-loss rate of {', '.join(map(str, numbers))} clients",
        same="with more reports the variance of their sum rises, as the source says, and that of "
        "their mean falls",
        other="it rises somewhere by more than one seed explains",
    )  # fmt: skip


def few_labels_cost_without(runs: Runs) -> Verdict:
    """Judge whether non-IID ends below IID without protection."""
    theirs = [BASELINES["lenet-mnist", split] for split in SPLITS]
    ours = [accuracy(runs[split]) for split in SPLITS]
    return Verdict.of(
        ours[1] < ours[0], "without protection: accuracy IID, non-IID",
        listed(theirs, 4), listed(ours, 4),
        same="non-IID ends below, after twice the rounds",
        other="twice the rounds make up for what few labels cost",
    )  # fmt: skip


def few_labels_cost(iid: Sequence[float], shards: Sequence[float]) -> Verdict:
    """Judge whether non-IID loses more at every epsilon at which either still learns."""
    pairs = [f"{a:.3f} / {b:.3f}" for a, b in zip(iid, shards, strict=True)]
    return Verdict.of(
        all(b > a for a, b in zip(iid, shards, strict=True)),
        f"accuracy-loss rate IID / non-IID at epsilon {listed(LARGE, 1)}",
        "non-IID loses more", ", ".join(pairs),
        same="clients of few labels pull further apart, and the noise comes on top",
        other="not at every epsilon: twice the rounds make up for some of it, and where nothing "
        "is learnt both lose alike",
    )  # fmt: skip


def adapting_helps(runs: Runs, spent: Mapping[str, float]) -> Iterator[Verdict]:
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

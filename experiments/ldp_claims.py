"""The claims of source 002 about its figures, each judged by the metrics of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from experiments.arms import Runs, accuracy, listed, mean_accuracy
from experiments.evidence import (
    LEAST_SEEDS,
    SLACK,
    Lost,
    decided,
    falls,
    idle,
    of_seeds,
    with_interval,
)
from experiments.experiment import Scale, Verdict
from experiments.ldp_jobs import (
    BASELINES,
    CELLS,
    LARGE,
    LOCATION,
    SPLITS,
    Task,
    labels,
    source_task,
)
from fedveil.privacy.finding import Measured

#: Loss rates by task and mechanism.
Rates = Mapping[tuple[Task, str], Lost]
#: Two standard deviations of the difference of two accuracies near 0.988, each on 10,000 images.
_SLACK_OF_MNIST = 0.003


def _unsure(slack: float = SLACK) -> str:
    return f"a difference up to {slack:g} says nothing"


def _more(difference: str, seeds: int, slack: float = SLACK) -> str:
    """Return the criterion of `decided` in words, for a `difference` with `seeds` values."""
    if seeds < LEAST_SEEDS:
        return f"{difference} is more than {slack:g}; {_unsure(slack)}"
    return (
        f"{difference}, seed by seed: the interval lies above 0; it says nothing if the interval "
        f"contains 0 and ends above {slack:g}"
    )


def _falling(lost: Lost, rise: float, what: str, *, same: str, other: str) -> Verdict:
    """Judge whether accuracy-loss rates fall steadily from the first run that learnt something."""
    agrees, nothing = (False, lost.nothing) if lost.nothing else falls(lost.trend, rise)
    fall = _more("the fall from the first to the last", _seeds(lost.trend))
    return Verdict.of(
        agrees, what, "falls", ", ".join(map(with_interval, lost.by_seed)),
        held_to=f"from the first run above chance level on: no step of the mean rises by more than "
        f"{rise:g}, and {fall}",
        same=same, other=other, nothing=nothing,
    )  # fmt: skip


def _seeds(trend: Sequence[Sequence[float]]) -> int:
    """Return the number of seeds that the first setting of a trend shares with the last."""
    return min(len(trend[0]), len(trend[-1])) if trend else 1


def converges(runs: Runs, kind: str) -> Verdict:
    """Judge whether runs under the mechanism `kind` converge faster with a larger epsilon."""
    noisy = [of_seeds(runs, f"{kind}-{eps:g}") for eps in LARGE]
    reached = [[*map(accuracy, each)] for each in noisy]
    lost = Lost([[accuracy(runs["plain"])] * len(each) for each in noisy], reached, 10)
    speeds = [[mean_accuracy(run) for run in each] for each in noisy]
    slow = [[-speed for speed in each] for each in speeds[len(speeds) - len(lost.trend) :]]
    agrees, nothing = (False, lost.nothing) if lost.nothing else falls(slow, SLACK)
    return Verdict.of(
        agrees, f"{kind}: mean accuracy over all rounds, by epsilon {listed(LARGE, 1)}",
        "rises with epsilon", ", ".join(map(with_interval, speeds)),
        held_to=f"from the first run above chance level on: no step of the mean falls by more than "
        f"{SLACK:g}, and {_more('the rise from the first to the last', _seeds(slow))}",
        same="with less noise, the model converges sooner",
        other="it does not rise from each epsilon to the next",
        nothing=nothing,
    )  # fmt: skip


def cells_help(series: tuple[str, float], lost: Lost) -> Verdict:
    """Judge whether the accuracy loss falls steadily with the number of cells."""
    split, eps = series
    best = min(zip(lost.rates, CELLS, strict=True))[1]
    return _falling(
        lost, 0.03,
        f"{split}, epsilon {eps:g}: accuracy-loss rate at {', '.join(map(str, CELLS))} cells",
        same="at this epsilon, coarse rounding costs more than the noise, which grows with the "
        "cells",
        other=f"the noise grows with the cells: its variance is (cells + 1)(2 cells + 1)/(3 cells) "
        f"times that of a bit. Beyond {best} cells this outweighs the finer rounding",
    )  # fmt: skip


def baselines_reached(scale: Scale, runs: Runs, tasks: Sequence[Task]) -> Iterator[Verdict]:
    """Judge the accuracies without protection. The source states none for Location-30."""
    for task in tasks:
        if task == LOCATION:
            continue
        reached, theirs = accuracy(runs[task]), BASELINES[source_task(task), "iid"]
        yield Verdict.of(
            abs(reached - theirs) <= 0.01, f"{task}: accuracy without protection",
            f"{theirs:.4f}", f"{reached:.4f}", held_to="at most 0.01 apart",
            same="less than a percentage point apart",
            other="the data, the model or the rounds are not the source's",
            nothing=idle({task: reached}, labels(scale, task)),
        )  # fmt: skip


def epsilon_decides(rates: Rates) -> Iterator[Verdict]:
    """Judge the trends that the source's text states, by accuracy-loss rates."""
    nothing, unusable, alike = 0.05, 0.5, 0.1
    for (task, kind), lost in rates.items():
        yield _falling(
            lost, 0.05, f"{task}, {kind}: accuracy-loss rate by epsilon",
            same="with less noise, less accuracy is lost",
            other="it rises somewhere by more than chance explains",
        )  # fmt: skip
    plain = next((lost.without for lost in rates.values() if lost.without), "")
    collapsed = [f"{task}, {kind}" for (task, kind), lost in rates.items() if not lost.learnt[-1]]
    ends = [lost.rates[-1] for lost in rates.values()]
    yield Verdict.of(
        max(ends) <= nothing, "the largest epsilon", "nearly nothing is lost", listed(ends),
        held_to=f"each at most {nothing:g}",
        same=f"at most {nothing:g} of the accuracy",
        other="noise and rounding still cost accuracy",
        nothing=plain or (f"at chance level: {'; '.join(collapsed)}" if collapsed else ""),
    )  # fmt: skip
    starts = [lost.rates[0] for lost in rates.values()]
    yield Verdict.of(
        min(starts) >= unusable, "the smallest epsilon", "the model does not converge",
        listed(starts), held_to=f"each at least {unusable:g}",
        same=f"at least {unusable:g} of the accuracy is lost", other="it still learns",
        nothing=plain,
    )  # fmt: skip
    for task in dict.fromkeys(task for task, _ in rates):
        rr, oue = rates[task, "rr"], rates[task, "oue"]
        apart = [b - a for a, b in zip(rr.rates, oue.rates, strict=True)]
        both = [a and b for a, b in zip(rr.learnt, oue.learnt, strict=True)]
        compared = [abs(each) for each, ok in zip(apart, both, strict=True) if ok]
        silent = "" if compared else "at no epsilon do both end above chance level"
        yield Verdict.of(
            max(compared, default=0.0) <= alike, f"{task}: OUE's loss rate minus RR's",
            "nearly 0", listed(apart),
            held_to=f"at most {alike:g} where both end above chance level",
            same=f"they are at most {alike:g} apart",
            other="at equal epsilon, OUE's estimate has at least about four times RR's variance, "
            "but a report of RR costs twice as much",
            nothing=rr.without or silent,
        )  # fmt: skip


def leakage_within(
    leaks: Mapping[Task, Sequence[Measured]], rates: Mapping[Task, Lost]
) -> Iterator[Verdict]:
    """Judge whether the leakage rates lie on the axis of the source's figure.

    `leaks` has the rate without protection, then one for each run of `rates`. Nothing can be judged
    from an attack that only guesses even without protection, or from a model at chance level.
    """
    low, high = 0.45, 0.75
    for task, measured in leaks.items():
        plain, *noisy = measured
        lost = rates[task]
        pairs = [*zip(noisy, lost.learnt, strict=True)]
        values = [plain.value, *(leak.value for leak, learnt in pairs if learnt)]
        shown = [f"{plain.value:.3f}", *(f"{leak.value:.3f}" if learnt else f"({leak.value:.3f})"
                                         for leak, learnt in pairs)]  # fmt: skip
        guesses = (
            f"without protection the leakage rate is {plain.value:.3f} "
            f"[{plain.low:.3f}, {plain.high:.3f}], an interval that contains the 0.5 of guessing"
        )
        yield Verdict.of(
            low <= min(values) and max(values) <= high,
            f"{task}: leakage rate without protection, and of RR by epsilon",
            f"an axis from {low:g} to {high:g}", ", ".join(shown),
            held_to="those of models above chance level lie on that axis. A rate in brackets is "
            "of a model at chance level, which has nothing to leak",
            same=f"the interval without protection, [{plain.low:.3f}, {plain.high:.3f}], lies "
            f"above guessing, and these rates lie on the axis",
            other="the model memorises more or less than the source's",
            nothing=lost.nothing or ("" if plain.low > 0.5 else guesses),
        )  # fmt: skip


def clients_help(kind: str, numbers: Sequence[int], lost: Lost) -> Verdict:
    """Judge whether the accuracy loss under the mechanism `kind` falls with the clients."""
    return _falling(
        lost, 0.05, f"{kind}: accuracy-loss rate of {', '.join(map(str, numbers))} clients",
        same="with more reports, the variance of their sum rises, as the source says, but that of "
        "their mean falls",
        other="it rises somewhere by more than chance explains",
    )  # fmt: skip


def few_labels_cost_without(runs: Runs) -> Iterator[Verdict]:
    """Judge accuracies without protection: if they are the source's, and if non-IID is lower."""
    theirs = [BASELINES["lenet-mnist", split] for split in SPLITS]
    iid, shards = ([accuracy(run) for run in of_seeds(runs, split)] for split in SPLITS)
    ours = [mean(iid), mean(shards)]
    silent = idle(dict(zip(SPLITS, ours, strict=True)), 10)
    yield Verdict.of(
        all(abs(a - b) <= 0.01 for a, b in zip(ours, theirs, strict=True)),
        "without protection: accuracy IID, non-IID",
        listed(theirs, 4), f"{with_interval(iid, 4)}, {with_interval(shards, 4)}",
        held_to="each at most 0.01 from the source's",
        same="data, model, clients and rounds are the source's",
        other="the data, the model or the rounds are not the source's",
        nothing=silent,
    )  # fmt: skip
    apart = [a - b for a, b in zip(iid, shards, strict=True)]
    below, nothing = decided(apart, _SLACK_OF_MNIST)
    yield Verdict.of(
        below, "without protection: IID minus non-IID",
        f"{theirs[0] - theirs[1]:.4f}", with_interval(apart, 4),
        held_to=_more("the difference", len(apart), _SLACK_OF_MNIST),
        same="non-IID ends below, after twice the rounds",
        other="twice the rounds more than compensate for the few labels",
        nothing=silent or nothing,
    )  # fmt: skip


def few_labels_cost(iid: Lost, shards: Lost) -> Verdict:
    """Judge whether non-IID loses more accuracy than IID at every epsilon at which both learn."""
    pairs = [*zip(iid.by_seed, shards.by_seed, strict=True)]
    both = [a and b for a, b in zip(iid.learnt, shards.learnt, strict=True)]
    compared = [[b - a for a, b in zip(*pair, strict=True)]
                for pair, ok in zip(pairs, both, strict=True) if ok]  # fmt: skip
    agrees, nothing = _all_decided(compared)
    return Verdict.of(
        agrees, f"accuracy-loss rate IID / non-IID at epsilon {listed(LARGE, 1)}",
        "non-IID loses more",
        ", ".join(f"{with_interval(a)} / {with_interval(b)}" for a, b in pairs),
        held_to="at every epsilon where both end above chance level: "
        + _more("non-IID minus IID", _seeds(compared)),
        same="updates of clients with few labels differ more, and the noise adds to that",
        other="not at every epsilon, because twice the rounds compensate for some of the loss",
        nothing=iid.without or shards.without or nothing,
    )  # fmt: skip


def _all_decided(differences: Sequence[Sequence[float]]) -> tuple[bool, str]:
    """Decide whether each difference is above 0. Returns a pair like `decided`."""
    if not differences:
        return False, "at no epsilon do both end above chance level"
    found = [decided(each) for each in differences]
    if any(pair == (False, "") for pair in found):
        return False, ""
    return all(agrees for agrees, _ in found), next((why for _, why in found if why), "")


@dataclass(frozen=True)
class _Adapted:
    """Runs with an adaptive and with a fixed epsilon. Each public method judges one claim."""

    scale: Scale
    runs: Runs

    def is_faster(self, task: Task) -> Verdict:
        """Judge whether an adaptive epsilon converges faster than a fixed one."""
        gained = self._gains(task, "fixed")
        agrees, nothing = decided(gained)
        both = (with_interval(self._speeds(task, kind)) for kind in ("fixed", "adaptive"))
        return Verdict.of(
            agrees, f"{task}: mean accuracy over all rounds, fixed and adaptive",
            "adaptive is faster", ", ".join(both),
            held_to=_more("adaptive minus fixed", len(gained)),
            same="it adds less noise", other="it is not faster",
            nothing=self._silent(task, "fixed", "adaptive") or nothing,
        )  # fmt: skip

    def gains_more(self, lenet: Task, dnn: Task) -> Verdict:
        """Judge whether LeNet gains more from an adaptive epsilon than the dense net."""
        ours = [self._gains(task, "fixed") for task in (lenet, dnn)]
        further = [a - b for a, b in zip(*ours, strict=True)]
        agrees, nothing = decided(further, 2 * SLACK)  # each gain is uncertain
        silent = (self._silent(task, "fixed", "adaptive") for task in (lenet, dnn))
        return Verdict.of(
            agrees, f"gain of {lenet}, gain of {dnn}",
            "LeNet gains more", ", ".join(map(with_interval, ours)),
            held_to=_more("the first minus the second", len(further), 2 * SLACK),
            same="its successive models differ more",
            other="the similarity of successive models depends on their noise as much as on what "
            "they learnt",
            nothing=next(filter(None, silent), nothing),
        )  # fmt: skip

    def keeps_the_budget(self, task: Task, spent: Mapping[str, float]) -> Verdict:
        """Judge whether the total budget is unchanged. `spent` has the total of each run."""
        adaptive, fixed = (sum(of_seeds(spent, f"{task}-{kind}")) for kind in ("adaptive", "fixed"))
        grown = adaptive / fixed
        return Verdict.of(
            grown <= 1.0001, f"{task}: the total budget", "unchanged", f"{grown:.2f} times as much",
            held_to="at most 1.0001 times as much",
            same="every quotient was 1", other="A_s is at most 1, so eps / A_s is never below eps, "
            "and the total can only grow",
            nothing=self._silent(task, "adaptive"),
        )  # fmt: skip

    def beats_the_same_total(self, task: Task) -> Verdict:
        """Judge whether an adaptive epsilon is faster than a fixed one of the same total."""
        at_total = self._gains(task, "same-total")
        agrees, nothing = decided(at_total)
        return Verdict.of(
            agrees, f"{task}: mean accuracy over all rounds, adaptive minus a fixed epsilon of the "
            "same total", "adaptive is faster", with_interval(at_total),
            held_to=_more("the difference", len(at_total)),
            same="it spends more in the rounds that need it",
            other="a fixed epsilon that spends as much is as fast or faster",
            nothing=self._silent(task, "adaptive", "same-total") or nothing,
        )  # fmt: skip

    def _speeds(self, task: Task, kind: str) -> list[float]:
        return [mean_accuracy(run) for run in of_seeds(self.runs, f"{task}-{kind}")]

    def _gains(self, task: Task, kind: str) -> list[float]:
        """Return how much faster the adaptive epsilon is than `kind`, for each seed."""
        pairs = zip(self._speeds(task, "adaptive"), self._speeds(task, kind), strict=True)
        return [adaptive - other for adaptive, other in pairs]

    def _silent(self, task: Task, *kinds: str) -> str:
        reached = {
            f"{task}-{kind}": min(accuracy(run) for run in of_seeds(self.runs, f"{task}-{kind}"))
            for kind in kinds
        }
        return idle(reached, labels(self.scale, task))


def adapting_helps(
    scale: Scale, runs: Runs, spent: Mapping[str, float], tasks: Sequence[Task]
) -> Iterator[Verdict]:
    """Judge the claims about an adaptive epsilon. `spent` has the total budget of each run."""
    adapted = _Adapted(scale, runs)
    for task in tasks:
        yield adapted.is_faster(task)
    lenet, dnn = tasks[:2]
    yield adapted.gains_more(lenet, dnn)
    for task in tasks:
        yield adapted.keeps_the_budget(task, spent)
        yield adapted.beats_the_same_total(task)

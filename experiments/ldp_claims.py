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
    all_hold,
    decided,
    falls,
    idle,
    near,
    of_seeds,
    whole_interval,
    with_interval,
)
from experiments.experiment import Scale, Verdict
from experiments.ldp_jobs import BASELINES, CELLS, LARGE, SPLITS, Task, labels

#: Two standard deviations of the difference of two accuracies near 0.988, each on 10,000 images.
_SLACK_OF_MNIST = 0.003
#: A total that is at most this many times another one is unchanged.
_UNCHANGED = 1.0001


def more(difference: str, seeds: int, slack: float = SLACK) -> str:
    """Return the criterion of `decided` in words, for a `difference` with `seeds` values."""
    if seeds < LEAST_SEEDS:
        return f"{difference} is more than {slack:g}; a difference up to {slack:g} says nothing"
    return (
        f"{difference}, seed by seed: the interval lies above 0; it says nothing if the interval "
        f"contains 0 and ends above {slack:g}"
    )


def falling(lost: Lost, rise: float, what: str, *, same: str, other: str) -> Verdict:
    """Judge whether accuracy-loss rates fall steadily, from the first run that learnt something."""
    agrees, nothing = (False, lost.nothing) if lost.nothing else falls(lost.trend, rise)
    fall = more("the fall from the first to the last", _seeds(lost.trend))
    return Verdict.of(
        agrees, what, "falls", ", ".join(map(with_interval, lost.by_seed)),
        held_to=f"{lost.start}: no step of the mean rises by more than "
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
        held_to=f"{lost.start}: no step of the mean falls by more than "
        f"{SLACK:g}, and {more('the rise from the first to the last', _seeds(slow))}",
        same="with less noise, the model converges sooner",
        other="it does not rise from each epsilon to the next",
        nothing=nothing,
    )  # fmt: skip


def cells_help(series: tuple[str, float], lost: Lost) -> Verdict:
    """Judge whether the accuracy loss falls steadily with the number of cells."""
    split, eps = series
    best = min(zip(lost.rates, CELLS, strict=True))[1]
    return falling(
        lost, 0.03,
        f"{split}, epsilon {eps:g}: accuracy-loss rate at {', '.join(map(str, CELLS))} cells",
        same="at this epsilon, coarse rounding costs more than the noise, which grows with the "
        "cells",
        other=f"the noise grows with the cells: its variance is (cells + 1)(2 cells + 1)/(3 cells) "
        f"times that of a bit. Beyond {best} cells this outweighs the finer rounding",
    )  # fmt: skip


def clients_help(kind: str, numbers: Sequence[int], lost: Lost) -> Verdict:
    """Judge whether the accuracy loss under the mechanism `kind` falls with the clients."""
    return falling(
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
    agrees, unsure = all_hold(
        near([each - a for each in reached], 0.01)
        for a, reached in zip(theirs, (iid, shards), strict=True)
    )
    yield Verdict.of(
        agrees, "without protection: accuracy IID, non-IID",
        listed(theirs, 4), f"{with_interval(iid, 4)}, {with_interval(shards, 4)}",
        held_to=f"each at most 0.01 from the source's{whole_interval(len(iid))}",
        same="data, model, clients and rounds are the source's",
        other="the data, the model or the rounds are not the source's",
        nothing=silent or unsure,
    )  # fmt: skip
    apart = [a - b for a, b in zip(iid, shards, strict=True)]
    below, nothing = decided(apart, _SLACK_OF_MNIST)
    yield Verdict.of(
        below, "without protection: IID minus non-IID",
        f"{theirs[0] - theirs[1]:.4f}", with_interval(apart, 4),
        held_to=more("the difference", len(apart), _SLACK_OF_MNIST),
        same="non-IID ends below, after twice the rounds",
        other="twice the rounds make up for the few labels",
        nothing=silent or nothing,
    )  # fmt: skip


def few_labels_cost(iid: Lost, shards: Lost) -> Verdict:
    """Judge whether non-IID loses more accuracy than IID at every epsilon at which both learn."""
    pairs = [*zip(iid.by_seed, shards.by_seed, strict=True)]
    both = [a and b for a, b in zip(iid.learnt, shards.learnt, strict=True)]
    compared = [[b - a for a, b in zip(*pair, strict=True)]
                for pair, ok in zip(pairs, both, strict=True) if ok]  # fmt: skip
    agrees, unsure = all_hold(map(decided, compared))
    silent = "" if compared else "at no epsilon do both end above chance level"
    return Verdict.of(
        agrees, f"accuracy-loss rate IID / non-IID at epsilon {listed(LARGE, 1)}",
        "non-IID loses more",
        ", ".join(f"{with_interval(a)} / {with_interval(b)}" for a, b in pairs),
        held_to="at every epsilon where both end above chance level: "
        + more("non-IID minus IID", _seeds(compared)),
        same="updates of clients with few labels differ more, and the noise adds to that",
        other="not at every epsilon, because twice the rounds compensate for some of the loss",
        nothing=iid.without or shards.without or silent or unsure,
    )  # fmt: skip


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
            held_to=more("adaptive minus fixed", len(gained)),
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
            held_to=more("the first minus the second", len(further), 2 * SLACK),
            same="its successive models differ more",
            other="the similarity of successive models depends on their noise as much as on what "
            "they learnt",
            nothing=next(filter(None, silent), nothing),
        )  # fmt: skip

    def keeps_the_budget(self, task: Task, spent: Mapping[str, float]) -> Verdict:
        """Judge whether the total budget is unchanged. `spent` has the total of each run."""
        both = (of_seeds(spent, f"{task}-{kind}") for kind in ("adaptive", "fixed"))
        grown = [adaptive / fixed for adaptive, fixed in zip(*both, strict=True)]
        grows, nothing = decided([times - _UNCHANGED for times in grown], slack=0.0)
        held_to = f"at most {_UNCHANGED:g} times as much"
        if len(grown) >= LEAST_SEEDS:
            held_to += (
                ", seed by seed: the interval ends there or below; if it contains this number, it "
                "says nothing"
            )
        return Verdict.of(
            not grows, f"{task}: the total budget", "unchanged",
            f"{with_interval(grown)} times as much", held_to=held_to,
            same="every quotient was 1", other="A_s is at most 1, so eps / A_s is never below eps, "
            "and the total can only grow",
            nothing=self._silent(task, "adaptive") or nothing,
        )  # fmt: skip

    def beats_the_same_total(self, task: Task) -> Verdict:
        """Judge whether an adaptive epsilon is faster than a fixed one of the same total."""
        at_total = self._gains(task, "same-total")
        agrees, nothing = decided(at_total)
        return Verdict.of(
            agrees, f"{task}: mean accuracy over all rounds, adaptive minus a fixed epsilon of the "
            "same total", "adaptive is faster", with_interval(at_total),
            held_to=more("the difference", len(at_total)),
            same="it spends more in the rounds that need it",
            other="a fixed epsilon that spends as much is about as fast, or faster",
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

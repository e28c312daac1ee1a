"""Confidence intervals of shares, medians and areas under a ROC curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.base.lazy import special
from fedveil.base.validate import integer
from fedveil.privacy.finding import CONFIDENCE, Measured

#: Below this number of scores of a kind, DeLong's variance is too often too small. Log-odds are
#: about normal only if at least this number of disjoint pairs is ranked wrong, and as many right.
_FEW = 10


def share(
    name: str, hits: int, cases: int, *, guess: float = np.nan, confidence: float = CONFIDENCE
) -> Measured:
    """Return the metric `name`, which is `hits` / `cases`, with the Clopper-Pearson interval.

    The interval covers the true share with probability at least `confidence`. `guess` is the chance
    level.
    """
    hits, cases = integer("hits", hits, 0, cases), integer("cases", cases, 1)
    return Measured(name, hits / cases, *_clopper_pearson(hits, cases, confidence), guess, cases)


def share_of_groups(
    name: str,
    hits: Sequence[int] | Int64s,
    cases: Sequence[int] | Int64s,
    *,
    guess: float = np.nan,
    confidence: float = CONFIDENCE,
) -> Measured:
    """Return the metric `name`, the sum of `hits` / the sum of `cases`. Both have one per group.

    Groups are independent, but the cases of one group may depend on each other in any way, such as
    the words of one text. The interval is that of Korn and Graubard (1998): Clopper-Pearson's, for
    the number of independent cases whose share would vary as much. If the groups do not differ, or
    all cases are hits or none is, that number is the number of groups.
    """
    hits_of, cases_of = np.asarray(hits, np.float64), np.asarray(cases, np.float64)
    groups, total = len(cases_of), integer("cases", int(cases_of.sum()), 1)
    value = float(hits_of.sum()) / total
    number = float(groups)
    if groups > 1 and 0 < value < 1:
        spread = float(((hits_of - value * cases_of) ** 2).sum()) * groups / (groups - 1)
        if spread:
            tails = (special().stdtrit(n - 1, (1 + confidence) / 2) for n in (total, groups))
            number = value * (1 - value) * total**2 / spread * float(np.divide(*tails)) ** 2
    number = min(max(number, 1.0), float(total))
    low, high = _clopper_pearson(value * number, number, confidence)
    return Measured(name, value, low, high, guess, total)


def _clopper_pearson(hits: float, cases: float, confidence: float) -> tuple[float, float]:
    """Return the interval. The number of cases need not be whole."""
    tail = (1 - confidence) / 2
    inverse = special().betaincinv
    low = float(inverse(hits, cases - hits + 1, tail)) if hits > 0 else 0.0
    high = float(inverse(hits + 1, cases - hits, 1 - tail)) if hits < cases else 1.0
    return low, high


def median(
    name: str,
    values: Sequence[float] | Float64s,
    *,
    guess: float = np.nan,
    confidence: float = CONFIDENCE,
) -> Measured:
    """Return the metric `name`, the median of `values`, with an exact confidence interval.

    The interval lies between two of the values, and is valid for every distribution. It covers the
    true median with probability at least `confidence`. It is NaN if there are too few values.
    `guess` is the chance level.
    """
    # The interval goes from the k-th smallest of the n values to the k-th largest, with the
    # greatest k that `confidence` allows. It misses the true median only if fewer than k values are
    # at most the true median, or fewer than k are at least that. Either has a probability of at
    # most Pr[Binomial(n, 1/2) < k].
    ordered = np.sort(np.asarray(values, np.float64))
    n = integer("values", len(ordered), 1)
    below = special().bdtr(np.arange(n // 2 + 1), n, 0.5)  # Pr[at most k below]
    usable = np.flatnonzero(below <= (1 - confidence) / 2)
    low, high = np.nan, np.nan
    if len(usable):
        k = int(usable[-1])
        low, high = float(ordered[k]), float(ordered[n - 1 - k])
    return Measured(name, float(np.median(ordered)), low, high, guess, n)


def area(
    name: str, members: Float64s, others: Float64s, *, confidence: float = CONFIDENCE
) -> Measured:
    """Return the metric `name`, the area under the ROC curve of an attacker's scores.

    It is the probability that a random score of `members` is above a random one of `others`. Ties
    count half. The interval has the given `confidence`. It is DeLong's (1988), on the scale of
    log-odds, if there are enough scores. Otherwise it is wider (see `_of_few_errors`).
    """
    # DeLong's variance says little if it is 0 (all members above all others, or all scores equal)
    # or if there are fewer than 10 members or others. The interval is then the exact one for as
    # many cases as there are disjoint pairs. Without a pair it is [0, 1].
    m, n = len(members), len(others)
    if not m or not n:
        return Measured(name, 0.5, 0.0, 1.0, 0.5, m + n)
    wins, losses = _outscored(members, others), _outscored(others, members)
    value = float(wins.mean())
    pairs = min(m, n)
    parts = wins.var(ddof=1) / m if m > 1 else 0.0, losses.var(ddof=1) / n if n > 1 else 0.0
    variance = float(sum(parts)) if pairs >= _FEW else 0.0
    if not variance or not 0 < value < 1:
        least, most = math.floor(value * pairs + 1e-9), math.ceil(value * pairs - 1e-9)
        low = share(name, least, pairs, confidence=confidence).low
        high = share(name, most, pairs, confidence=confidence).high
        return Measured(name, value, low, high, 0.5, m + n)
    if pairs * min(value, 1 - value) < _FEW:
        freedom = variance**2 / (parts[0] ** 2 / (m - 1) + parts[1] ** 2 / (n - 1))
        low, high = _of_few_errors(value, variance, freedom, m, n, confidence)
        return Measured(name, value, low, high, 0.5, m + n)
    middle = math.log(value / (1 - value))
    reach = float(-special().ndtri((1 - confidence) / 2)) * math.sqrt(variance)
    reach /= value * (1 - value)
    low, high = (float(special().expit(middle + side * reach)) for side in (-1, 1))
    return Measured(name, value, low, high, 0.5, m + n)


def _of_few_errors(
    value: float, variance: float, freedom: float, m: int, n: int, confidence: float
) -> tuple[float, float]:
    """Return the interval of an area near 0 or 1, or from few scores: m and n of the two kinds.

    `value` is the area, and `variance` DeLong's variance with `freedom` degrees of freedom. The
    interval is Clopper-Pearson's, for the number of independent cases whose share would vary as
    much. This number is reduced for the uncertainty of the variance, as in `share_of_groups`.
    """
    # If few pairs are ranked wrong, the scores that would be are often missing from the sample.
    # DeLong's variance is then far too small. So it is at least that of Hanley and McNeil (1982)
    # for scores with an exponential distribution.
    least = max(_hanley_mcneil(area, m, n) for area in (value, 1 - value))
    normal = -float(special().ndtri((1 - confidence) / 2))
    student = float(special().stdtrit(freedom, (1 + confidence) / 2))
    cases = value * (1 - value) / max(variance, least) * (normal / student) ** 2
    return _clopper_pearson(value * cases, cases, confidence)


def _hanley_mcneil(area: float, m: int, n: int) -> float:
    """Return the variance of an area from m and n scores, if the scores are exponential."""
    two_members, two_others = area / (2 - area), 2 * area**2 / (1 + area)
    spread = (m - 1) * (two_members - area**2) + (n - 1) * (two_others - area**2)
    return (area * (1 - area) + spread) / (m * n)


def chance_of_ranks(members: Float64s, others: Float64s) -> float:
    """Return the p-value of the lowest rank of a member, if all rankings are equally likely.

    Let m be the number of `members`, n that of `others`, and k the number of others that score at
    least as high as the lowest member. The result is the probability that all members are among the
    first m + k in a random order: C(m + k, m) / C(m + n, m).
    """
    m, n = len(members), len(others)
    if not m or not n:
        return 1.0
    k = int((others >= members.min()).sum())
    return math.comb(m + k, m) / math.comb(m + n, m)


def _outscored(scores: Float64s, others: Float64s) -> Float64s:
    """Return, for each score, the share of `others` that are lower. An equal one counts half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, "left")
    up_to = np.searchsorted(ordered, scores, "right")
    result: Float64s = (below + up_to) / (2 * len(others))
    return result

"""Confidence intervals: exact ones of a share and a median, DeLong's of the area under a curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedveil.base.arrays import Float64s
from fedveil.base.lazy import special
from fedveil.base.validate import integer
from fedveil.privacy.finding import CONFIDENCE, Measured

#: Below this number of scores of a kind, DeLong's variance is too often too small.
_FEW = 10


def share(
    name: str, hits: int, cases: int, *, guess: float = np.nan, confidence: float = CONFIDENCE
) -> Measured:
    """Return `hits` of `cases` with the exact interval of Clopper and Pearson, never too narrow."""
    hits, cases = integer("hits", hits, 0, cases), integer("cases", cases, 1)
    tail = (1 - confidence) / 2
    inverse = special().betaincinv
    low = float(inverse(hits, cases - hits + 1, tail)) if hits else 0.0
    high = float(inverse(hits + 1, cases - hits, 1 - tail)) if hits < cases else 1.0
    return Measured(name, hits / cases, low, high, guess, cases)


def median(
    name: str,
    values: Sequence[float] | Float64s,
    *,
    guess: float = np.nan,
    confidence: float = CONFIDENCE,
) -> Measured:
    """Return the median with an interval of two order statistics, NaN if there are too few values.

    The number of n values below the median of their distribution is binomial (n, 1/2), for every
    distribution: the k-th smallest and the k-th largest enclose it unless fewer than k lie on one
    side.
    """
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
    """Return the area under the ROC curve: Pr[a member outscores another], ties counting half.

    The interval is DeLong's (1988), on the scale of log-odds, so that it cannot leave [0, 1]. His
    variance says little if it is 0 (all members above all others, or all scores equal) or if there
    are fewer than 10 members or others. The interval is then the exact one for the number of
    disjoint pairs. Without a pair nothing is known.
    """
    m, n = len(members), len(others)
    if not m or not n:
        return Measured(name, 0.5, 0.0, 1.0, 0.5, m + n)
    wins, losses = _outscored(members, others), _outscored(others, members)
    value = float(wins.mean())
    pairs = min(m, n)
    variance = wins.var(ddof=1) / m + losses.var(ddof=1) / n if pairs >= _FEW else 0.0
    if not variance or not 0 < value < 1:
        least, most = math.floor(value * pairs + 1e-9), math.ceil(value * pairs - 1e-9)
        low = share(name, least, pairs, confidence=confidence).low
        high = share(name, most, pairs, confidence=confidence).high
        return Measured(name, value, low, high, 0.5, m + n)
    middle = math.log(value / (1 - value))
    reach = float(-special().ndtri((1 - confidence) / 2)) * math.sqrt(variance)
    reach /= value * (1 - value)
    low, high = (float(special().expit(middle + side * reach)) for side in (-1, 1))
    return Measured(name, value, low, high, 0.5, m + n)


def chance_of_ranks(members: Float64s, others: Float64s) -> float:
    """Return the chance that scores which tell nothing rank all members as high as these.

    If k of n others score no less than the lowest of m members, this is C(m + k, m) / C(m + n, m).
    """
    m, n = len(members), len(others)
    if not m or not n:
        return 1.0
    k = int((others >= members.min()).sum())
    return math.comb(m + k, m) / math.comb(m + n, m)


def _outscored(scores: Float64s, others: Float64s) -> Float64s:
    """Return for each score the share of the others below it, counting equal ones by half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, "left")
    up_to = np.searchsorted(ordered, scores, "right")
    result: Float64s = (below + up_to) / (2 * len(others))
    return result

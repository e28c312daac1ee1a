"""Intervals that hold for any law: of a share, and of a median."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedveil._arrays import Float64s
from fedveil._lazy import special
from fedveil._validate import integer
from fedveil.privacy.finding import CONFIDENCE, Measured


def share(
    name: str, hits: int, cases: int, *, guess: float = np.nan, confidence: float = CONFIDENCE
) -> Measured:
    """`hits` of `cases`, with the interval of Clopper and Pearson: exact, never too narrow."""
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
    """The median, between two order statistics; NaN where there are too few values for any.

    How many of n values lie below the median of their law is binomial (n, 1/2), whatever the law:
    the k-th smallest and the k-th largest enclose it unless fewer than k lie on one side.
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

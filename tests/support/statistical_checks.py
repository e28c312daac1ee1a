"""Statistical checks of draws: against a law, against each other, and against a claimed loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats

#: The probability that a test of a correct sampler fails.
ERROR_RATE = 1e-6


def assert_follows(counts: Sequence[float], law: Iterable[float]) -> None:
    """Check counts against a law by chi-square, with neighbouring rare outcomes merged."""
    expected = np.asarray(list(law), np.float64) * sum(counts)
    pooled_counts, pooled_expected, count, mass = [], [], 0.0, 0.0
    for c, e in zip(counts, expected, strict=True):
        count, mass = count + c, mass + e
        if mass >= 10:
            pooled_counts.append(count)
            pooled_expected.append(mass)
            count, mass = 0.0, 0.0
    pooled_counts[-1] += count
    pooled_expected[-1] += mass
    statistic = sum((c - e) ** 2 / e for c, e in zip(pooled_counts, pooled_expected, strict=True))
    assert len(pooled_counts) > 1, "one outcome has everything: nothing is tested"
    assert stats.chi2.sf(statistic, len(pooled_counts) - 1) > ERROR_RATE


def assert_alike(first: Sequence[int], second: Sequence[int]) -> None:
    """Check by chi-square that two samples of whole numbers have the same law."""
    low, high = min(*first, *second), max(*first, *second)
    counts = np.array([np.bincount(np.asarray(x) - low, minlength=high - low + 1)
                       for x in (first, second)])  # fmt: skip
    both = counts.sum(axis=0)
    groups = np.minimum(np.cumsum(both) // 40, both.sum() // 40 - 1)
    pooled = np.array([np.bincount(groups, row) for row in counts])
    pooled = pooled[:, pooled.sum(axis=0) > 0]
    assert pooled.shape[1] > 1, "one outcome has everything: nothing is tested"
    assert stats.chi2_contingency(pooled, correction=False).pvalue > ERROR_RATE


def loss_at_least(hits_a: int, hits_b: int, trials: int, delta: float = 0.0) -> float:
    """Return a lower bound on epsilon, wrong with probability 0.001 at most (Clopper-Pearson).

    An event, chosen beforehand, occurred in `hits_a` of `trials` outputs for one input, and in
    `hits_b` for the other.
    """
    low = stats.beta.ppf(0.0005, hits_a, trials - hits_a + 1)
    high = stats.beta.ppf(0.9995, hits_b + 1, trials - hits_b)
    return math.log(max(low - delta, 1e-300) / high)

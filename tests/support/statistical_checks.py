"""What draws are held against: a law, each other, and the loss that a mechanism claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats

#: How often a test of a correct sampler may fail.
ERROR_RATE = 1e-6


def assert_follows(counts: Sequence[float], law: Iterable[float]) -> None:
    """Chi-square of counts against a law, neighbouring rare outcomes taken together."""
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
    """Chi-square of homogeneity of two samples of whole numbers."""
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
    """A lower bound on epsilon that is wrong with probability 0.001 at most (Clopper and Pearson).

    An event, chosen before, was seen in so many of `trials` outputs for either input.
    """
    low = stats.beta.ppf(0.0005, hits_a, trials - hits_a + 1)
    high = stats.beta.ppf(0.9995, hits_b + 1, trials - hits_b)
    return math.log(max(low - delta, 1e-300) / high)

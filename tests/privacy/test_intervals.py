"""Intervals of attacks' figures miss as rarely as they say, and are no wider than needed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from fedveil.privacy.intervals import median


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("n", [1, 4, 6, 7, 30, 61])
def test_the_interval_of_a_median_is_the_narrowest_of_its_confidence(
    n: int, confidence: float
) -> None:
    values = np.arange(n, dtype=float)
    found = median("m", values[::-1], confidence=confidence)
    assert found.value == (n - 1) / 2
    misses = [2 * binom.cdf(k, n, 0.5) for k in range(n)]  # of values k to n - 1 - k
    if misses[0] > 1 - confidence:
        assert np.isnan([found.low, found.high]).all()
        return
    k = int(found.low)
    assert found.high == n - 1 - k
    assert misses[k] <= 1 - confidence < misses[k + 1]

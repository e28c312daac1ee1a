"""Shared by the tests of unary encoding: scripted randomness, chi-square, exact enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from fedveil.entropy import Entropy

ERROR_RATE = 1e-6


class Scripted(Entropy):
    """Yields the given bytes and nothing else."""

    description = "a script"

    def __init__(self, *parts: bytes) -> None:
        super().__init__()
        self._script = b"".join(parts)

    def _fresh_key(self) -> bytes:
        return bytes(32)

    def stream(self, *path: int | str) -> Scripted:
        raise AssertionError("a script has no streams")

    def fill(self, out: Any) -> None:
        target = (out.data if isinstance(out, np.ndarray) else memoryview(out)).cast("B")
        assert len(target) <= len(self._script), "the script is too short"
        target[:] = self._script[: len(target)]
        self._script = self._script[len(target) :]

    @property
    def left(self) -> int:
        """Bytes that nobody has read."""
        return len(self._script)


def word(value: int, size: int = 4) -> bytes:
    """`value` as it comes out of a keystream."""
    return value.to_bytes(size, "little")


def enumerated_sum_law(p: Fraction, q: Fraction, cells: int, state: int) -> dict[int, Fraction]:
    """Pr[S | state], by writing down every code."""
    states = range(-cells, cells + 1)
    law: Counter[int] = Counter()
    for bits in itertools.product((0, 1), repeat=2 * cells + 1):
        chances = [p if v == state else q for v in states]
        mass = math.prod(
            (c if bit else 1 - c for c, bit in zip(chances, bits, strict=True)), start=Fraction(1)
        )
        law[sum(v for v, bit in zip(states, bits, strict=True) if bit)] += mass
    return dict(law)


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


def loss_lower_bound(
    mechanism: Any, a: Any, b: Any, event: Any, trials: int, confidence: float = 0.999
) -> float:
    """A distinguishing game: with this confidence the pure loss is at least what is returned.

    `mechanism(x, trials)` plays `trials` rounds at once, `event` picks outcomes likelier under a.
    """
    hits_a, hits_b = (int(np.count_nonzero(event(mechanism(x, trials)))) for x in (a, b))
    tail = (1 - confidence) / 2
    low = stats.beta.ppf(tail, hits_a, trials - hits_a + 1)
    high = stats.beta.ppf(1 - tail, hits_b + 1, trials - hits_b)
    return math.log(low / high)

"""Sums of vectors that do not depend on the order of their terms.

A term is cut to 64 binary places (towards zero, 2^-64 = 5.4e-20), split into a whole part and
those places, and both are added as integers with carry: Q64.64 fixed point. Integer sums are
exact, so that reports may arrive in any order, and running sums of several servers merge to the
same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil._kernels import compiled

#: A larger entry is refused: 2^22 such terms still fit the whole part.
MAX_MAGNITUDE = 2.0**40
MAX_TERMS = 1 << 22


class ExactSum:
    """A running sum of `weight * vector` terms over vectors of one length."""

    def __init__(self, length: int) -> None:
        self.terms = 0
        self._whole = np.zeros(length, np.int64)
        self._places = np.zeros(length, np.uint64)

    def add(self, vector: npt.NDArray[Any], weight: int = 1) -> None:
        """Add one term. Raises ValueError, and adds nothing, if an entry is NaN or too large."""
        if self.terms + 1 > MAX_TERMS:
            raise ValueError(f"more than {MAX_TERMS} terms")
        bound = _largest(vector) * weight
        if not bound <= MAX_MAGNITUDE:
            raise ValueError("an entry is not finite or too large")
        _add(self._whole, self._places, vector, float(weight))
        self.terms += 1

    def merge(self, other: ExactSum) -> None:
        """Add another running sum of the same length."""
        if self.terms + other.terms > MAX_TERMS:
            raise ValueError(f"more than {MAX_TERMS} terms")
        self._places += other._places
        self._whole += other._whole + (self._places < other._places)
        self.terms += other.terms

    def value(self) -> npt.NDArray[np.float64]:
        """The sum, rounded to float64."""
        return self._whole.astype(np.float64) + self._places.astype(np.float64) * 2.0**-64


def _largest(vector: npt.NDArray[Any]) -> float:
    """The largest magnitude; NaN where an entry is NaN."""
    return float(max(vector.max(initial=0.0), -vector.min(initial=0.0)))


def _add_numpy(
    whole: npt.NDArray[np.int64],
    places: npt.NDArray[np.uint64],
    vector: npt.NDArray[Any],
    weight: float,
) -> None:
    term = vector.astype(np.float64) * weight
    magnitude = np.abs(term)
    high = magnitude.astype(np.int64)
    low = ((magnitude - high) * 2.0**64).astype(np.uint64)
    mask = -(term < 0).astype(np.int64)
    low = (low ^ mask.astype(np.uint64)) - mask.astype(np.uint64)
    high = (high ^ mask) + ((low == 0) & (mask != 0))
    places += low
    whole += high + (places < low)


@compiled(_add_numpy)
def _add(
    whole: npt.NDArray[np.int64],
    places: npt.NDArray[np.uint64],
    vector: npt.NDArray[Any],
    weight: float,
) -> None:
    # Without branches, so that it becomes vector instructions: a negative term is negated in two's
    # complement by flipping all bits and adding one.
    for i in range(len(vector)):
        term = np.float64(vector[i]) * weight
        magnitude = abs(term)
        high = np.int64(magnitude)
        low = np.uint64((magnitude - np.float64(high)) * 18446744073709551616.0)
        mask = np.int64(-1) if term < 0 else np.int64(0)
        low = (low ^ np.uint64(mask)) - np.uint64(mask)
        high = (high ^ mask) + (np.int64(1) if low == 0 and mask != 0 else np.int64(0))
        new_places = places[i] + low
        places[i] = new_places
        whole[i] += high + (np.int64(1) if new_places < low else np.int64(0))

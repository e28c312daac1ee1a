"""Sums of vectors that do not depend on the order of their terms.

A term is split into a whole part and 64 binary places, and both are added as integers with
carry: Q64.64 fixed point, 2^-64 = 5.4e-20 per entry. Integer sums are exact, so that reports may
arrive in any order, and running sums of several servers merge to the same bytes.
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
    floor = np.floor(term)
    floor += term - floor == 1.0  # a tiny negative term: its distance to -1 rounds to one
    fraction = ((term - floor) * 2.0**64 * (term > floor)).astype(np.uint64)
    places += fraction
    whole += floor.astype(np.int64) + (places < fraction)


@compiled(_add_numpy)
def _add(
    whole: npt.NDArray[np.int64],
    places: npt.NDArray[np.uint64],
    vector: npt.NDArray[Any],
    weight: float,
) -> None:
    for i in range(len(vector)):
        term = np.float64(vector[i]) * weight
        floor = np.floor(term)
        if term - floor == 1.0:
            floor += 1.0
        fraction = np.uint64(max(term - floor, 0.0) * 18446744073709551616.0)
        places[i] += fraction
        whole[i] += np.int64(floor) + np.int64(places[i] < fraction)

"""Sums of vectors that do not depend on the order of their terms.

A term, `weight * vector` in float64, is truncated towards zero to 44 binary places (2^-44 =
5.7e-14) and added as an integer. Integer sums are exact, so reports may arrive in any order, and
the running sums of several servers merge to the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base import reused_memory
from fedveil.base.array_types import into_floats
from fedveil.base.kernels import compiled
from fedveil.base.two_threads import by_halves

PLACES = 44
#: A larger entry is refused, so that 2^22 terms fit the whole part.
MAX_MAGNITUDE = 2.0**40
MAX_TERMS = 1 << 22

#: Up to 2^9 terms below 2^9, with their binary places, fit in 62 bits.
_NEAR_MAGNITUDE = 2.0**9
_NEAR_TERMS = 1 << 9
_SIGNLESS = np.uint32(0x7FFFFFFF)


class ExactSum:
    """An exact running sum of `weight * vector`, over float32 vectors of equal length."""

    def __init__(self, length: int) -> None:
        self.terms = 0
        self._near = reused_memory.zeros(length, np.int64)
        self._near_terms = 0
        self._far: _WideSum | None = None

    def add(self, vector: npt.NDArray[np.float32], weight: int = 1) -> None:
        """Add `weight * vector` to the sum.

        Raises `ValueError`, and adds nothing, if an entry is not finite or too large.
        """
        self._claim(1)
        if self._near_terms == _NEAR_TERMS:
            self._move_away()
        limit = _pattern(_NEAR_MAGNITUDE / weight)
        if _add_by_halves(self._near, vector, weight * 2.0**PLACES, limit):
            self._near_terms += 1
        elif largest_magnitude(vector) * weight <= MAX_MAGNITUDE:
            self._wide().add(vector.astype(np.float64) * weight)
        else:
            raise ValueError("an entry is not finite or too large")
        self.terms += 1

    def merge(self, other: ExactSum) -> None:
        self._claim(other.terms)
        if self._near_terms + other._near_terms > _NEAR_TERMS:
            self._move_away()
        self._near += other._near
        self._near_terms += other._near_terms
        if other._far is not None:
            self._wide().merge(other._far)
        self.terms += other.terms

    def value(self, divisor: int = 1) -> npt.NDArray[np.float64]:
        """Return the sum divided by `divisor`. Call it once, at the end: it overwrites the sum."""
        if self._far is None:
            return into_floats(self._near, 2.0**-PLACES, divisor)
        self._move_away()
        return self._far.value() / divisor

    def _claim(self, terms: int) -> None:
        if self.terms + terms > MAX_TERMS:
            raise ValueError(f"more than {MAX_TERMS} terms")

    def _wide(self) -> _WideSum:
        if self._far is None:
            self._far = _WideSum(len(self._near))
        return self._far

    def _move_away(self) -> None:
        self._wide().add_units(self._near)
        self._near[:] = 0
        self._near_terms = 0


class _WideSum:
    """A sum in two parts: whole numbers, and fractions as 0..2^44 - 1 in units of 2^-44.

    Every sum has exactly one such form, so equal sums have equal bytes.
    """

    def __init__(self, length: int) -> None:
        self._whole = np.zeros(length, np.int64)
        self._places = np.zeros(length, np.int64)

    def add(self, term: npt.NDArray[np.float64]) -> None:
        magnitude = np.abs(term)
        whole = magnitude.astype(np.int64)
        places = ((magnitude - whole) * 2.0**PLACES).astype(np.int64)
        sign = np.sign(term).astype(np.int64)
        self._carry(sign * whole, sign * places)

    def add_units(self, units: npt.NDArray[np.int64]) -> None:
        self._carry(np.zeros_like(units), units)

    def merge(self, other: _WideSum) -> None:
        self._carry(other._whole, other._places)

    def value(self) -> npt.NDArray[np.float64]:
        return self._whole.astype(np.float64) + self._places.astype(np.float64) * 2.0**-PLACES

    def _carry(self, whole: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> None:
        self._places += places
        self._whole += whole + (self._places >> PLACES)
        self._places &= (1 << PLACES) - 1


def largest_magnitude(vector: npt.NDArray[np.float32]) -> float:
    """Return the largest magnitude in a contiguous vector, or NaN if an entry is NaN."""
    # Bit patterns without the sign are compared: larger magnitudes have larger patterns, and NaN
    # has the largest.
    pattern = _largest_pattern(vector.view(np.uint32))
    return float(np.array(pattern, np.uint32).view(np.float32))


def _largest_pattern_numpy(patterns: npt.NDArray[np.uint32]) -> int:
    return int((patterns & _SIGNLESS).max(initial=0))


@compiled(_largest_pattern_numpy)
def _largest_pattern(patterns: npt.NDArray[np.uint32]) -> int:
    largest = np.uint32(0)
    for i in range(len(patterns)):
        pattern = patterns[i] & _SIGNLESS
        largest = pattern if pattern > largest else largest
    return int(largest)


def _pattern(value: float) -> np.uint32:
    """Return the bits of a float32 >= 0 as an integer. A larger float gives a larger integer."""
    return np.uint32(np.array(value, np.float32).view(np.uint32))


def _add_by_halves(
    units: npt.NDArray[np.int64], vector: npt.NDArray[np.float32], factor: float, limit: np.uint32
) -> bool:
    """Add `factor * vector` to `units`, with two threads if `vector` is long.

    Parameters and result are as in `_add_below`: returns False, and adds nothing, if an entry of
    `vector` is too large for `limit`.
    """

    def add(part: slice) -> tuple[slice, bool]:
        return part, _add_below(units[part], vector[part], factor, limit)

    added = by_halves(len(units), add)
    if all(done for _, done in added):
        return True
    for part, done in added:
        if done:
            _move(units[part], vector[part], -factor)
    return False


def _add_below_numpy(
    units: npt.NDArray[np.int64], vector: npt.NDArray[np.float32], factor: float, limit: np.uint32
) -> bool:
    if _largest_pattern_numpy(vector.view(np.uint32)) >= limit:
        return False
    _move_numpy(units, vector, factor)
    return True


@compiled(_add_below_numpy)
def _add_below(
    units: npt.NDArray[np.int64], vector: npt.NDArray[np.float32], factor: float, limit: np.uint32
) -> bool:
    """Add `factor * vector` to `units`, unless an entry of `vector` is too large in magnitude.

    Products are truncated to whole numbers. An entry is too large if its magnitude is NaN or at
    least some bound. `limit` is this bound's float32 bits, read as an integer (`_pattern(bound)`).
    Returns False, and adds nothing, if an entry is too large.
    """
    patterns = vector.view(np.uint32)
    for start in range(0, len(units), 4096):
        some = slice(start, start + 4096)
        if _largest_pattern(patterns[some]) >= limit:
            _move(units[:start], vector[:start], -factor)
            return False
        _move(units[some], vector[some], factor)
    return True


def _move_numpy(units: npt.NDArray[np.int64], vector: npt.NDArray[Any], factor: float) -> None:
    units += (vector.astype(np.float64) * factor).astype(np.int64)


@compiled(_move_numpy)
def _move(units: npt.NDArray[np.int64], vector: npt.NDArray[Any], factor: float) -> None:
    for i in range(len(units)):
        units[i] += np.int64(np.float64(vector[i]) * factor)

"""Exact draws from distributions whose probabilities are real numbers.

A probability such as e^eps / (1 + e^eps) is neither a floating-point number nor a fraction. So a
draw compares a uniform real with the cumulative probabilities, 64 bits at a time. If these bits are
equal, 64 more bits of both numbers are compared. The comparison ends with probability one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np

from fedveil.base.array_types import Int64s
from fedveil.entropy import Entropy

#: Largest supported exponent x of e^x.
MAX_EXPONENT = 10_000
_WORD = 64
_BITS_PER_DIGIT = 3.3219280948873623

#: (e^x, bits) -> floor(2^bits * F_i) for the cumulative probabilities 0 < F_0 < F_1 < ... < 1.
Floors = Callable[[Fraction, int], list[int]]
T = TypeVar("T")


class ExactDraw:
    """Draws numbers from 0 to n, exactly: i with probability F_i(e^x) - F_{i-1}(e^x).

    `x` is a float. F_0 .. F_{n-1} are cumulative probabilities, monotone functions of a positive
    number. F_{-1} is 0 and F_n is 1. For a fraction y near e^x, `floors(y, bits)` must return the n
    integers floor(2^bits F_i(y)), for i = 0 .. n-1.
    """

    def __init__(self, x: float, floors: Floors) -> None:
        self._x, self._floors_at = x, floors
        self._table = np.array(self._floors(_WORD), np.uint64)

    def _floors(self, bits: int) -> list[int]:
        digits = int(bits / _BITS_PER_DIGIT) + 10
        return _settled(self._x, lambda e: self._floors_at(e, bits), digits)

    def draw(self, count: int, entropy: Entropy) -> Int64s:
        words = entropy.words(count)
        out = np.searchsorted(self._table, words, side="right").astype(np.int64)
        if len(self._table):
            undecided = self._table[np.maximum(out - 1, 0)] == words
            for index in np.flatnonzero(undecided):
                out[index] = self._refine(int(words[index]), entropy)
        return out

    def _refine(self, prefix: int, entropy: Entropy) -> int:
        """Return a draw for which the first 64 random bits, the integer `prefix`, are not enough.

        Reads 64 more bits at a time from `entropy` until they decide the draw.
        """
        bits = _WORD
        while True:
            bits += _WORD
            prefix = prefix << _WORD | int.from_bytes(entropy.token(_WORD // 8), "little")
            table = self._floors(bits)
            index = bisect_right(table, prefix)
            if index == 0 or table[index - 1] != prefix:
                return index


@lru_cache(maxsize=64)
def exp_bounds(x: float, digits: int) -> tuple[Fraction, Fraction]:
    """Return two fractions, one below and one above e^x.

    They differ by less than 2 * 10^(1 - digits) e^x.
    """
    # Decimal's exp is correctly rounded: its error is at most half a unit of the last digit.
    context = Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)
    middle = Fraction(Decimal(x).exp(context))
    unit = Fraction(1, 10 ** (digits - 1))
    return middle * (1 - unit), middle * (1 + unit)


def at_least_zero(a: int, b: int, x: float) -> bool:
    """Return True if a + b e^x >= 0. The comparison is exact."""
    return _settled(x, lambda e: a + b * e >= 0, 30)


def _settled(x: float, monotone: Callable[[Fraction], T], digits: int) -> T:
    """Return `monotone(e^x)` exactly.

    `monotone` maps a fraction to an integer, a truth value or a list of integers. Each of them must
    be monotone in the fraction. `monotone` is evaluated at two fractions, one below and one above
    e^x, computed with `digits` decimal digits. If the results are equal, they are also the result
    for e^x. Otherwise, the number of digits is doubled.
    """
    # The two results become equal because e^x is transcendental for a float x != 0: a fraction (a +
    # b e^x) / (c + d e^x) times 2^bits is an integer only if it does not depend on x.
    while True:
        low, high = (monotone(end) for end in exp_bounds(x, digits))
        if low == high:
            return low
        digits *= 2

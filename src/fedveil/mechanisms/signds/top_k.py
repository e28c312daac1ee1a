"""Finds the largest entries of a vector, without sorting it.

A radix select maps each float to an integer key, such that larger floats have larger keys. It
counts the entries by the highest 16 bits of their keys, then by the next 16 bits, and so on. The
time does not depend on the order of the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedveil.base.array_types import Array, Int64s
from fedveil.base.kernels import HAVE_NUMBA, compiled
from fedveil.base.validate import finite_vector
from fedveil.errors import InvalidValue

Vector = Array

_DIGIT_BITS = 16
_DIGITS = 1 << _DIGIT_BITS
_LAST = _DIGITS - 1
_TOP_BIT = 1 << (_DIGIT_BITS - 1)
_LARGEST = (1 << 63) - 1
#: At most this many entries are sorted directly: a table of digits would take longer.
_FEW = 1 << 12
_ROW = 256
_BLOCK = 64
_ABOVE, _EQUAL, _BELOW = 1, 0, -1


class TopSet:
    """The set of those `size` entries of `vector` for which sign * entry is largest.

    `sign` is 1 or -1. If several entries equal the smallest value in the set, those with the lowest
    indices are in it. -0.0 and 0.0 are equal. Raises `InvalidValue` on NaN and infinity.
    """

    def __init__(self, vector: Vector, size: int, sign: int) -> None:
        self._vector = vector
        self._sign = vector.dtype.type(sign)
        self._least = _least_member(vector, size, sign)
        rows = -(-len(vector) // _ROW)
        above, equal, lanes = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(_ROW)
        _count_rows(vector, self._sign, self._least, above, equal, lanes)
        length = np.full(rows, _ROW)
        length[-1] -= rows * _ROW - len(vector)
        counts = {_ABOVE: above, _EQUAL: equal, _BELOW: length - above - equal}
        self._before = {kind: np.concatenate([[0], np.cumsum(c)]) for kind, c in counts.items()}
        self._equal_members = size - int(self._before[_ABOVE][-1])
        total = sum(lanes.tolist()) + self._equal_members * abs(float(self._least))
        self.mean_magnitude = total / size

    def members(self, ranks: Int64s) -> Int64s:
        """Return the vector indices of the members that have the given `ranks`.

        All members are ranked, beginning with 0. First come those that are above the set's smallest
        value, by their index in the vector. Then come those that equal it, also by index. A value
        is the set's `sign` times the entry. `ranks` must be in ascending order.
        """
        return self._indices(_ABOVE, ranks, 0)

    def others(self, ranks: Int64s) -> Int64s:
        """Return the vector indices of the entries outside the set that have the given `ranks`.

        All entries outside the set are ranked, beginning with 0. First come those that are below
        the set's smallest value, by their index in the vector. Then come those that equal it, also
        by index. A value is the set's `sign` times the entry. `ranks` must be in ascending order.
        """
        return self._indices(_BELOW, ranks, self._equal_members)

    def _indices(self, kind: int, ranks: Int64s, first_equal: int) -> Int64s:
        strict = int(self._before[kind][-1])
        split = int(np.searchsorted(ranks, strict))
        equal = self._find(_EQUAL, ranks[split:] - strict + first_equal)
        return np.concatenate([self._find(kind, ranks[:split]), equal])

    def _find(self, kind: int, ranks: Int64s) -> Int64s:
        out = np.empty(len(ranks), np.int64)
        _locate(self._vector, self._sign, self._least, kind, self._before[kind], ranks, out)
        return out


def flat_vector(update: Any) -> Vector:
    """Return `update` as a contiguous float32 or float64 vector, without checking its values.

    Raises `InvalidValue` unless it is one-dimensional and has real numbers.
    """
    array = np.asarray(update)
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    elif array.dtype == np.float16:
        array = array.astype(np.float32)
    if array.dtype.newbyteorder("=") not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise InvalidValue(f"update has dtype {array.dtype}, float32 or float64 is needed")
    if array.ndim != 1 or not array.size:
        raise InvalidValue(f"update has shape {array.shape}, one dimension with entries is needed")
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])


def _least_member(vector: Vector, size: int, sign: int) -> Any:
    if not HAVE_NUMBA or len(vector) <= _FEW:
        values = finite_vector("update", vector) * vector.dtype.type(sign)
        return np.partition(values, -size)[-size]
    width = 8 * vector.itemsize
    magnitude = (1 << (width - 1)) - 1
    flip = 0 if sign > 0 else ~magnitude
    bits = vector.view(f"i{vector.itemsize}")

    shift = width - _DIGIT_BITS
    digit, larger, equal, specials = _boundary(
        bits, flip, magnitude, shift, _TOP_BIT, size, _special_digits(vector.dtype)
    )
    if specials:
        raise InvalidValue("update holds NaN or infinity")
    key = digit ^ _TOP_BIT
    bias = _TOP_BIT
    while shift:
        low, high = _span(bits, flip, magnitude, shift, bias, digit)
        if low == high:  # all candidates are equal, such as zeros of a sparse vector
            return _float_of(low, vector.dtype)
        same = np.empty(equal, bits.dtype)
        _with_digit(bits, flip, magnitude, shift, bias, digit, same)
        if equal <= _FEW:
            values = same.view(vector.dtype) * vector.dtype.type(sign)
            return np.partition(values, larger - size)[larger - size]
        bits, bias = same, 0
        shift -= _DIGIT_BITS
        size -= larger
        digit, larger, equal, _ = _boundary(bits, flip, magnitude, shift, bias, size, 0)
        key = key << _DIGIT_BITS | digit
    return _float_of(key, vector.dtype)


def _special_digits(dtype: np.dtype[Any]) -> int:
    return 1 << (int(np.finfo(dtype).nmant) - 8 * dtype.itemsize + _DIGIT_BITS)


def _float_of(key: int, dtype: np.dtype[Any]) -> Any:
    width = 8 * dtype.itemsize
    magnitude = (1 << (width - 1)) - 1
    key &= 2 * magnitude + 1
    bits = key ^ magnitude if key > magnitude else key
    return np.array([bits], f"u{dtype.itemsize}").view(dtype)[0]


@compiled()
def _key(bits: Any, flip: int, magnitude: int) -> Any:
    # The key of -0.0 is below that of 0.0, although the floats are equal. This does no harm: keys
    # only serve to find the smallest member, and the later passes compare floats.
    wide = np.int64(bits) ^ flip
    return wide ^ ((wide >> 63) & magnitude)


@compiled()
def _boundary(
    bits: Vector, flip: int, magnitude: int, shift: int, bias: int, size: int, special: int
) -> tuple[int, int, int, int]:
    counts = np.zeros(_DIGITS, np.int64)
    for i in range(len(bits)):
        key = _key(bits[i], flip, magnitude)
        counts[((key >> shift) ^ bias) & _LAST] += 1
    digit = _LAST
    larger = 0
    while larger + counts[digit] < size:
        larger += counts[digit]
        digit -= 1
    specials = 0
    for i in range(special):
        specials += counts[i] + counts[_LAST - i]
    return digit, larger, counts[digit], specials


@compiled()
def _span(
    bits: Vector, flip: int, magnitude: int, shift: int, bias: int, digit: int
) -> tuple[int, int]:
    low, high = _LARGEST, -_LARGEST
    for i in range(len(bits)):
        key = _key(bits[i], flip, magnitude)
        matches = ((key >> shift) ^ bias) & _LAST == digit
        low = min(low, key) if matches else low
        high = max(high, key) if matches else high
    return low, high


@compiled()
def _with_digit(
    bits: Vector, flip: int, magnitude: int, shift: int, bias: int, digit: int, out: Vector
) -> None:
    count = 0
    for start in range(0, len(bits), _BLOCK):
        part = bits[start : start + _BLOCK]
        found = np.int32(0)
        for j in range(len(part)):
            key = _key(part[j], flip, magnitude)
            found += np.int32(((key >> shift) ^ bias) & _LAST == digit)
        if found:
            for j in range(len(part)):
                key = _key(part[j], flip, magnitude)
                if ((key >> shift) ^ bias) & _LAST == digit:
                    out[count] = part[j]
                    count += 1


def _count_rows_numpy(
    vector: Vector, sign: Any, least: Any, above: Int64s, equal: Int64s, lanes: Vector
) -> None:
    values = vector * sign
    for row in range(len(above)):
        part = values[row * _ROW : (row + 1) * _ROW]
        larger = part > least
        with np.errstate(over="ignore"):
            lanes[: len(part)] += np.where(larger, np.abs(part).astype(np.float64), 0.0)
        above[row] = np.count_nonzero(larger)
        equal[row] = np.count_nonzero(part == least)


@compiled(_count_rows_numpy)
def _count_rows(
    vector: Vector, sign: Any, least: Any, above: Int64s, equal: Int64s, lanes: Vector
) -> None:
    for row in range(len(above)):
        part = vector[row * _ROW : (row + 1) * _ROW]
        larger, same = np.int32(0), np.int32(0)
        for j in range(len(part)):
            value = part[j] * sign
            lanes[j] += np.float64(abs(value)) if value > least else 0.0
            larger += np.int32(value > least)
            same += np.int32(value == least)
        above[row] = larger
        equal[row] = same


def _locate_numpy(
    vector: Vector, sign: Any, least: Any, kind: int, before: Int64s, ranks: Int64s, out: Int64s
) -> None:
    values = vector * sign
    order = (values > least).astype(np.int64) - (values < least)
    out[:] = np.flatnonzero(order == kind)[ranks]


@compiled(_locate_numpy)
def _locate(
    vector: Vector, sign: Any, least: Any, kind: int, before: Int64s, ranks: Int64s, out: Int64s
) -> None:
    row = -1
    at = seen = 0
    for i in range(len(ranks)):
        if row < 0 or before[row + 1] <= ranks[i]:
            row += 1
            while before[row + 1] <= ranks[i]:
                row += 1
            at = row * _ROW
            seen = before[row]
        while seen <= ranks[i]:
            value = vector[at] * sign
            seen += (value > least) - (value < least) == kind
            at += 1
        out[i] = at - 1

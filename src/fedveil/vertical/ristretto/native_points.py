"""Computes with many points of ristretto255 at once in native code (`point_formulas`)."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array
from fedveil.base.kernels import compiled
from fedveil.vertical.ristretto import field_lanes as field
from fedveil.vertical.ristretto import point_formulas as formulas
from fedveil.vertical.ristretto.field_lanes import BITS, LANES, LIMBS, WIDTH
from fedveil.vertical.ristretto.point_formulas import ENTRIES, ENTRY, PARTS, POINT, TABLE, TOTAL

Points = npt.NDArray[np.uint8]
_P = np.array([2**64 - 19, 2**64 - 1, 2**64 - 1, 2**63 - 1], np.uint64)
can_run = field.has_products
#: The number of digits of a scalar, and of points in each lane whose multiples are added together.
WINDOWS, TABLES = 64, 16
TABLE_ELEMENTS = ENTRIES * PARTS
#: The position of the masks in the memory, after the tables.
MASKS = (TABLE + (1 + TABLES) * TABLE_ELEMENTS) * WIDTH
_LIMB = (1 << BITS) - 1


@compiled()
def _run(s: Array, program: Array) -> None:
    for step in range(len(program)):
        operation, out = program[step, 0], program[step, 1]
        a, b = program[step, 2], program[step, 3]
        if operation == formulas.MULTIPLY:
            field.multiply(s, out, a, b)
        elif operation == formulas.SQUARE:
            field.square(s, out, a)
            for _ in range(b - 1):
                field.square(s, out, out)
        elif operation == formulas.ADD:
            field.add(s, out, a, b)
        elif operation == formulas.SUBTRACT:
            field.subtract(s, out, a, b)
        elif operation == formulas.SELECT:
            field.select(s, out, a, b, program[step, 4])
        elif operation == formulas.ZERO:
            field.zero(s, out, a)
        elif operation == formulas.NEGATIVE:
            field.negative(s, out, a)
        elif operation == formulas.SHRINK:
            field.shrink(s, out, a)


@compiled()
def _read(s: Array, element: int, words: Array, row: int, column: int) -> None:
    """Read eight numbers of 255 bits from `words` into the element `element` of the memory `s`.

    Each of the eight rows from `row` on has a number in four words of 64 bits, from `column` on.
    The last bit of the fourth word is ignored.
    """
    for lane in range(LANES):
        a, b = words[row + lane, column], words[row + lane, column + 1]
        c, d = words[row + lane, column + 2], words[row + lane, column + 3]
        at = element * WIDTH + lane
        s[at] = a & _LIMB
        s[at + LANES] = (a >> 51 | b << 13) & _LIMB
        s[at + 2 * LANES] = (b >> 38 | c << 26) & _LIMB
        s[at + 3 * LANES] = (c >> 25 | d << 39) & _LIMB
        s[at + 4 * LANES] = (d >> 12) & _LIMB


@compiled()
def _write(s: Array, words: Array, row: int) -> None:
    """Encode the eight points in the memory `s` into eight rows of `words`, from `row` on."""
    _run(s, formulas.ENCODE)
    for lane in range(LANES):
        at = POINT * WIDTH + lane
        a, b, c = s[at], s[at + LANES], s[at + 2 * LANES]
        d, e = s[at + 3 * LANES], s[at + 4 * LANES]
        words[row + lane, 0] = a | b << 51
        words[row + lane, 1] = b >> 13 | c << 38
        words[row + lane, 2] = c >> 26 | d << 25
        words[row + lane, 3] = d >> 39 | e << 12


@compiled()
def _points(s: Array, words: Array, row: int, invalid: Array) -> None:
    """Load eight points into the memory `s` from eight rows of `words`, from `row` on.

    A row is a 32-byte encoding, or a 64-byte hash that is mapped to a point. For encodings,
    `invalid[i]` is set to 0 if row i encodes a point, and to another number if it does not.
    """
    if words.shape[1] == 4:
        _read(s, POINT, words, row, 0)
        _run(s, formulas.DECODE)
        for lane in range(LANES):
            invalid[row + lane] = s[formulas.INVALID * WIDTH + lane]
        return
    _read(s, ENTRY, words, row, 4)
    _run(s, formulas.MAP)
    _run(s, formulas.AS_ENTRY)
    _copy(s, TABLE, ENTRY, PARTS)
    _read(s, ENTRY, words, row, 0)
    _run(s, formulas.MAP)
    _copy(s, ENTRY, TABLE, PARTS)
    _run(s, formulas.ADD_ENTRY)


@compiled()
def _copy(s: Array, out: int, a: int, elements: int) -> None:
    for word in range(elements * WIDTH):  # numba takes seconds to compile slices
        s[out * WIDTH + word] = s[a * WIDTH + word]


@compiled()
def _scale(s: Array, words: Array, out: Array, invalid: Array) -> None:
    """Multiply the points of the rows of `words` by a scalar, and write the results to `out`.

    A row is a 32-byte encoding, or a 64-byte hash that is mapped to a point. For encodings,
    `invalid[i]` is set to 0 if row i encodes a point, and to another number if it does not. `s` is
    memory that `_memory` made for the scalar.
    """
    for first in range(0, len(words), LANES):
        _points(s, words, first, invalid)
        _run(s, formulas.FILL_TABLE)
        _run(s, formulas.NEUTRAL)
        for window in range(WINDOWS):
            _run(s, formulas.DOUBLE_4)
            field.pick(s, ENTRY, TABLE, MASKS + window * ENTRIES)
            _run(s, formulas.ADD_ENTRY)
        _write(s, out, first)


@compiled()
def _add_up(s: Array, words: Array, digits: Array, out: Array, invalid: Array) -> None:
    """Write eight points to `out` that add up to Σ d_i P_i, for points P_i in the rows of `words`.

    Row i of `digits` has d_i, in digits of 4 bits. `invalid[i]` is nonzero if row i is no point.
    `s` is the memory in which the sum is computed.
    """
    _run(s, formulas.NEUTRAL)
    _copy(s, TOTAL, POINT, PARTS)
    for first in range(0, len(words), LANES * TABLES):
        count = min(TABLES, (len(words) - first) // LANES)
        for at in range(count):
            _points(s, words, first + at * LANES, invalid)
            _run(s, formulas.FILL_TABLE)
            _copy(s, TABLE + (at + 1) * TABLE_ELEMENTS, TABLE, TABLE_ELEMENTS)
        _run(s, formulas.NEUTRAL)
        for window in range(digits.shape[1]):
            _run(s, formulas.DOUBLE_4)
            for at in range(count):
                for lane in range(LANES):
                    digit = digits[first + at * LANES + lane, window]
                    table = TABLE + (at + 1) * TABLE_ELEMENTS + PARTS * digit
                    for step in range(0, PARTS * WIDTH, LANES):
                        s[ENTRY * WIDTH + lane + step] = s[table * WIDTH + lane + step]
                _run(s, formulas.ADD_ENTRY)
        _run(s, formulas.AS_ENTRY)
        _copy(s, POINT, TOTAL, PARTS)
        _run(s, formulas.ADD_ENTRY)
        _copy(s, TOTAL, POINT, PARTS)
    _write(s, out, 0)


def raised(points: Points, scalar: bytes) -> Points | None:
    """Return each point times the scalar, or None if a point is invalid or the identity element.

    Points are rows of 32 bytes.
    """
    words, count = _padded(points), len(points)
    out, invalid = np.empty((len(words), 4), np.uint64), np.empty(len(words), np.uint64)
    _scale(_memory(scalar), words, out, invalid)
    if invalid.any() or not _are_points(words[:count]) or not _are_points(out[:count]):
        return None
    return out.view(np.uint8)[:count]


def hashed(hashes: Points, scalar: bytes) -> Points:
    """Map each row of 64 bytes, a hash, to a point. Returns the points times the scalar."""
    words = _padded(hashes)
    out, invalid = np.empty((len(words), 4), np.uint64), np.empty(0, np.uint64)
    _scale(_memory(scalar), words, out, invalid)
    return out.view(np.uint8)[: len(hashes)]


def summed(weights: Points, points: Points) -> Points | None:
    """Return eight points that add up to Σ weights[i] points[i].

    Returns None if a point is invalid or the identity element.
    """
    words = _padded(points)
    digits = np.zeros((len(words), 2 * weights.shape[1]), np.uint8)
    digits[: len(weights), 0::2], digits[: len(weights), 1::2] = weights >> 4, weights & 15
    out, invalid = np.empty((LANES, 4), np.uint64), np.empty(len(words), np.uint64)
    _add_up(_memory(bytes(32)), words, digits, out, invalid)
    return None if invalid.any() or not _are_points(words[: len(points)]) else out.view(np.uint8)


def _padded(rows: Points) -> Array:
    """Return the rows as 64-bit words, with zero rows appended up to a multiple of eight rows."""
    padded = np.zeros((-(-len(rows) // LANES) * LANES, rows.shape[1]), np.uint8)
    padded[: len(rows)] = rows
    return padded.view("<u8")


def _are_points(words: Array) -> bool:
    """Return True if each row is an even number in [1, p - 1].

    Every point except the identity has such an encoding. Not every such number encodes a point:
    decoding finds the others.
    """
    large = (words[:, 3] >= _P[3]) & (words[:, 1:3] == _P[1]).all(axis=1) & (words[:, 0] >= _P[0])
    large |= (words[:, 3] > _P[3]) | (words[:, 0] & np.uint64(1) > 0)
    return bool(words.any(axis=1).all()) and not large.any()


def _memory(scalar: bytes) -> Array:
    """Return new memory for the formulas, with 16 masks for each 4-bit digit of `scalar`.

    The masks of a digit are numbered from 0. Only the mask whose number is the digit is set.
    """
    words = MASKS + WINDOWS * ENTRIES
    memory = np.zeros(words + LANES, np.uint64)
    memory = memory[-memory.ctypes.data // 8 % LANES :][:words]
    memory[: len(_constants())] = _constants()
    digits = np.frombuffer(scalar, np.uint8)[::-1, None] >> np.array([4, 0], np.uint8) & 15
    masks = digits.reshape(-1, 1) == np.arange(ENTRIES, dtype=np.uint8)
    memory[MASKS:] = -masks.astype(np.int64).ravel().view(np.uint64)
    return memory


@cache
def _constants() -> Array:
    limbs = [
        [number >> BITS * limb & _LIMB] * LANES
        for number in formulas.CONSTANTS
        for limb in range(LIMBS)
    ]
    return np.array(limbs, np.uint64).ravel()

"""The formulas of ristretto255 (RFC 9496) on eight points at once, in the memory of `field_lanes`.

Points have Edwards coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z and T = X Y / Z. An entry of a
table has (Y - X, Y + X, 2 d T, 2 Z). The formulas hold for all points, so that nothing branches.
"""

from __future__ import annotations

from fedveil.base.array_types import Array
from fedveil.base.kernels import compiled
from fedveil.vertical.ristretto.field_lanes import (
    BITS,
    ENTRIES,
    LANES,
    LIMBS,
    PARTS,
    WIDTH,
    P,
    add,
    multiply,
    negative,
    pick,
    select,
    shrink,
    square,
    subtract,
    zero,
)  # fmt: skip

_D = -121665 * pow(121666, -1, P) % P
_I = pow(2, (P - 1) // 4, P)


def _root(number: int) -> int:
    """Return the even square root of a square modulo p."""
    root = pow(number, (P + 3) // 8, P)
    root = root if (root * root - number) % P == 0 else root * _I % P
    return min(root, P - root, key=lambda one: one % 2)


#: The first elements of the memory.
CONSTANTS = (
    0, 1, 2, _D, 2 * _D % P, _I, (1 - _D * _D) % P, (_D - 1) ** 2 % P,
    P - _root((-_D - 1) % P), _root(pow(-1 - _D, -1, P)),
)  # fmt: skip
(_ZERO, _ONE, _TWO, _EDWARDS, _EDWARDS_2, _IMAGINARY, _ONE_LESS_D2, _D_LESS_ONE_2, _ROOT_AD_1,
 _INVERSE_ROOT_A_D) = range(len(CONSTANTS))  # fmt: skip
#: Elements: temporary ones, points of four, and tables of multiples.
_T = 16
POINT, TOTAL, ENTRY, TABLE = 40, 44, 48, 56
#: The tables in the memory, which a sum of multiples fills, and the places of masks after them.
TABLES = 16
_TABLE_ELEMENTS = ENTRIES * PARTS
MASKS = (TABLE + TABLES * _TABLE_ELEMENTS) * WIDTH
_LIMB = (1 << BITS) - 1
_WINDOW = 4
#: The digits of a scalar, a window of bits each.
WINDOWS = 64


@compiled()
def _squares(s: Array, out: int, a: int, times: int) -> None:
    square(s, out, a)
    for _ in range(times - 1):
        square(s, out, out)


@compiled()
def _power(s: Array, out: int, z: int) -> None:
    """Compute z to the power of (p - 5) / 8. The comments give exponents of z."""
    a, b, c = _T, _T + 1, _T + 2
    square(s, a, z)
    _squares(s, b, a, 2)
    multiply(s, b, z, b)  # 9
    multiply(s, a, a, b)  # 11
    square(s, a, a)
    multiply(s, a, b, a)  # 2^5 - 1
    _squares(s, b, a, 5)
    multiply(s, a, b, a)  # 2^10 - 1
    _squares(s, b, a, 10)
    multiply(s, b, b, a)  # 2^20 - 1
    _squares(s, c, b, 20)
    multiply(s, b, c, b)  # 2^40 - 1
    _squares(s, b, b, 10)
    multiply(s, a, b, a)  # 2^50 - 1
    _squares(s, b, a, 50)
    multiply(s, b, b, a)  # 2^100 - 1
    _squares(s, c, b, 100)
    multiply(s, b, c, b)  # 2^200 - 1
    _squares(s, b, b, 50)
    multiply(s, a, b, a)  # 2^250 - 1
    _squares(s, a, a, 2)
    multiply(s, out, a, z)


@compiled()
def _absolute(s: Array, out: int, a: int) -> None:
    negative(s, _T, a)
    subtract(s, _T + 1, _ZERO, a)
    select(s, out, _T, a, _T + 1)


@compiled()
def _root_of_ratio(s: Array, root: int, was_square: int, u: int, v: int) -> None:
    """Compute the root of u/v, or of i u/v where u/v is no square (RFC 9496, 4.2)."""
    v3, power, check, flips = _T + 3, _T + 4, _T + 5, _T + 6
    square(s, v3, v)
    multiply(s, v3, v3, v)
    square(s, power, v3)
    multiply(s, power, power, v)
    multiply(s, power, power, u)
    _power(s, power, power)
    multiply(s, v3, v3, u)
    multiply(s, root, v3, power)
    square(s, check, root)
    multiply(s, check, check, v)
    subtract(s, v3, check, u)
    zero(s, was_square, v3)
    add(s, v3, check, u)
    zero(s, power, v3)
    select(s, was_square, power, was_square, power)
    multiply(s, v3, u, _IMAGINARY)
    add(s, v3, v3, check)
    zero(s, flips, v3)
    select(s, flips, power, flips, power)
    multiply(s, v3, root, _IMAGINARY)
    select(s, root, flips, root, v3)
    _absolute(s, root, root)


@compiled()
def _decode(s: Array, point: int, invalid: int) -> None:
    """Replace the number in `point` by the point that it encodes (RFC 9496, 4.3.1)."""
    number, u1, u2, u22, v, root = point, _T + 8, _T + 9, _T + 10, _T + 11, _T + 12
    good, x, y = _T + 13, _T + 14, _T + 15
    square(s, u2, number)
    subtract(s, u1, _ONE, u2)
    add(s, u2, _ONE, u2)
    square(s, u22, u2)
    square(s, v, u1)
    multiply(s, v, v, _EDWARDS)
    add(s, v, v, u22)
    subtract(s, v, _ZERO, v)
    multiply(s, u22, u22, v)
    _root_of_ratio(s, root, good, _ONE, u22)
    multiply(s, x, root, u2)
    multiply(s, y, root, x)
    multiply(s, y, y, v)
    multiply(s, y, y, u1)
    multiply(s, x, x, number)
    add(s, x, x, x)
    _absolute(s, x, x)
    multiply(s, point + 3, x, y)
    negative(s, u1, point + 3)
    zero(s, u2, y)
    select(s, u1, u1, u2, u1)
    select(s, invalid, good, _ONE, u1)
    add(s, point, x, _ZERO)
    add(s, point + 1, y, _ZERO)
    add(s, point + 2, _ONE, _ZERO)


@compiled()
def _encode(s: Array, out: int, point: int) -> None:
    """Compute the number that encodes a point (RFC 9496, 4.3.2)."""
    x, y, z, t = point, point + 1, point + 2, point + 3
    u1, u2, root, den1, den2, inverse = _T + 8, _T + 9, _T + 10, _T + 11, _T + 12, _T + 13
    rotated_x, rotated_y, mask, ignored = _T + 14, _T + 15, _T + 16, _T + 17
    add(s, u1, z, y)
    subtract(s, u2, z, y)
    multiply(s, u1, u1, u2)
    multiply(s, u2, x, y)
    square(s, mask, u2)
    multiply(s, mask, mask, u1)
    _root_of_ratio(s, root, ignored, _ONE, mask)
    multiply(s, den1, root, u1)
    multiply(s, den2, root, u2)
    multiply(s, inverse, den1, den2)
    multiply(s, inverse, inverse, t)
    multiply(s, rotated_y, x, _IMAGINARY)
    multiply(s, rotated_x, y, _IMAGINARY)
    multiply(s, den1, den1, _INVERSE_ROOT_A_D)
    multiply(s, mask, t, inverse)
    negative(s, mask, mask)
    select(s, rotated_x, mask, x, rotated_x)
    select(s, rotated_y, mask, y, rotated_y)
    select(s, den2, mask, den2, den1)
    multiply(s, u1, rotated_x, inverse)
    negative(s, mask, u1)
    subtract(s, u2, _ZERO, rotated_y)
    select(s, rotated_y, mask, rotated_y, u2)
    subtract(s, u1, z, rotated_y)
    multiply(s, out, u1, den2)
    _absolute(s, out, out)
    shrink(s, out, out)


@compiled()
def _map(s: Array, out: int, t: int) -> None:
    """Map the number at `t` to a point (RFC 9496, 4.3.4)."""
    r, u, v, c, root, good, other, n = (
        _T + 8, _T + 9, _T + 10, _T + 11, _T + 12, _T + 13, _T + 14, _T + 15)  # fmt: skip
    square(s, r, t)
    multiply(s, r, r, _IMAGINARY)
    add(s, u, r, _ONE)
    multiply(s, u, u, _ONE_LESS_D2)
    subtract(s, c, _ZERO, _ONE)
    multiply(s, v, r, _EDWARDS)
    subtract(s, v, c, v)
    add(s, n, r, _EDWARDS)
    multiply(s, v, v, n)
    _root_of_ratio(s, root, good, u, v)
    multiply(s, other, root, t)
    _absolute(s, other, other)
    subtract(s, other, _ZERO, other)
    select(s, root, good, other, root)
    select(s, c, good, r, c)
    subtract(s, n, r, _ONE)
    multiply(s, n, n, c)
    multiply(s, n, n, _D_LESS_ONE_2)
    subtract(s, n, n, v)
    multiply(s, u, root, v)
    add(s, u, u, u)
    multiply(s, n, n, _ROOT_AD_1)
    square(s, c, root)
    subtract(s, r, _ONE, c)
    add(s, c, _ONE, c)
    multiply(s, out, u, c)
    multiply(s, out + 1, r, n)
    multiply(s, out + 2, n, c)
    multiply(s, out + 3, u, r)


@compiled()
def _double(s: Array, point: int, needs_t: bool) -> None:
    a, b, c, e, f, g, h = _T, _T + 1, _T + 2, _T + 3, _T + 4, _T + 5, _T + 6
    square(s, a, point)
    square(s, b, point + 1)
    square(s, c, point + 2)
    add(s, c, c, c)
    add(s, h, a, b)
    add(s, e, point, point + 1)
    square(s, e, e)
    subtract(s, e, h, e)
    subtract(s, g, a, b)
    add(s, f, c, g)
    multiply(s, point, e, f)
    multiply(s, point + 1, g, h)
    multiply(s, point + 2, f, g)
    if needs_t:
        multiply(s, point + 3, e, h)


@compiled()
def _add(s: Array, point: int, entry: int) -> None:
    """Add a table's entry to a point."""
    a, b, c, e, f, g, h = _T, _T + 1, _T + 2, _T + 3, _T + 4, _T + 5, _T + 6
    subtract(s, a, point + 1, point)
    multiply(s, a, a, entry)
    add(s, b, point + 1, point)
    multiply(s, b, b, entry + 1)
    multiply(s, c, point + 3, entry + 2)
    multiply(s, g, point + 2, entry + 3)
    subtract(s, e, b, a)
    subtract(s, f, g, c)
    add(s, g, g, c)
    add(s, h, b, a)
    multiply(s, point, e, f)
    multiply(s, point + 1, g, h)
    multiply(s, point + 2, f, g)
    multiply(s, point + 3, e, h)


@compiled()
def _as_entry(s: Array, entry: int, point: int) -> None:
    subtract(s, entry, point + 1, point)
    add(s, entry + 1, point + 1, point)
    multiply(s, entry + 2, point + 3, _EDWARDS_2)
    add(s, entry + 3, point + 2, point + 2)


@compiled()
def _neutral(s: Array, point: int) -> None:
    add(s, point, _ZERO, _ZERO)
    add(s, point + 1, _ONE, _ZERO)
    add(s, point + 2, _ONE, _ZERO)
    add(s, point + 3, _ZERO, _ZERO)


@compiled()
def _fill_table(s: Array, table: int, point: int) -> None:
    """Write the multiples 0, 1, ... 15 of a point. Overwrites the point."""
    _neutral(s, ENTRY)
    _as_entry(s, table, ENTRY)
    _as_entry(s, table + PARTS, point)
    for entry in range(2, ENTRIES):
        _add(s, point, table + PARTS)
        _as_entry(s, table + PARTS * entry, point)


@compiled()
def _read(s: Array, element: int, words: Array, row: int, column: int) -> None:
    """Read the numbers of 255 bits from eight rows of words. Ignores their last bit."""
    for lane in range(LANES):
        a, b, c, d = words[row + lane, column : column + 4]
        at = element * WIDTH + lane
        s[at] = a & _LIMB
        s[at + LANES] = (a >> 51 | b << 13) & _LIMB
        s[at + 2 * LANES] = (b >> 38 | c << 26) & _LIMB
        s[at + 3 * LANES] = (c >> 25 | d << 39) & _LIMB
        s[at + 4 * LANES] = (d >> 12) & _LIMB


@compiled()
def _write(s: Array, element: int, words: Array, row: int) -> None:
    for lane in range(LANES):
        at = element * WIDTH + lane
        a, b, c = s[at], s[at + LANES], s[at + 2 * LANES]
        d, e = s[at + 3 * LANES], s[at + 4 * LANES]
        words[row + lane, 0] = a | b << 51
        words[row + lane, 1] = b >> 13 | c << 38
        words[row + lane, 2] = c >> 26 | d << 25
        words[row + lane, 3] = d >> 39 | e << 12


@compiled()
def _multiply_point(s: Array, point: int) -> None:
    """Replace a point by its multiple. The masks in the memory choose an entry in each window."""
    _fill_table(s, TABLE, point)
    _neutral(s, point)
    for window in range(WINDOWS):
        for turn in range(_WINDOW):
            _double(s, point, turn == _WINDOW - 1)
        pick(s, ENTRY, TABLE, MASKS + window * ENTRIES)
        _add(s, point, ENTRY)


@compiled()
def raise_points(s: Array, words: Array, out: Array, invalid: Array) -> None:
    """Multiply the points in the rows of `words` by the scalar of the masks."""
    for row in range(0, len(words), LANES):
        _read(s, POINT, words, row, 0)
        _decode(s, POINT, TOTAL)
        for lane in range(LANES):
            invalid[row + lane] = s[TOTAL * WIDTH + lane]
        _multiply_point(s, POINT)
        _encode(s, POINT, POINT)
        _write(s, POINT, out, row)


@compiled()
def raise_hashes(s: Array, hashes: Array, out: Array) -> None:
    """Map the rows of `hashes`, of 64 bytes, to points, and multiply these."""
    for row in range(0, len(hashes), LANES):
        _read(s, ENTRY, hashes, row, 4)
        _map(s, POINT, ENTRY)
        _as_entry(s, TABLE, POINT)
        _read(s, ENTRY, hashes, row, 0)
        _map(s, POINT, ENTRY)
        _add(s, POINT, TABLE)
        _multiply_point(s, POINT)
        _encode(s, POINT, POINT)
        _write(s, POINT, out, row)


@compiled()
def sum_multiples(s: Array, words: Array, digits: Array, out: Array, invalid: Array) -> None:
    """Write eight points whose sum is the sum of the points times their scalars.

    `digits` has the scalars' hexadecimal digits, the first being the highest. They are no secret.
    """
    _neutral(s, TOTAL)
    for first in range(0, len(words), LANES * TABLES):
        count = min(TABLES, (len(words) - first) // LANES)
        for at in range(count):
            row = first + at * LANES
            _read(s, POINT, words, row, 0)
            _decode(s, POINT, ENTRY)
            for lane in range(LANES):
                invalid[row + lane] = s[ENTRY * WIDTH + lane]
            _fill_table(s, TABLE + at * _TABLE_ELEMENTS, POINT)
        _neutral(s, POINT)
        for window in range(digits.shape[1]):
            for turn in range(_WINDOW):
                _double(s, POINT, turn == _WINDOW - 1)
            for at in range(count):
                for lane in range(LANES):
                    digit = digits[first + at * LANES + lane, window]
                    place = (TABLE + at * _TABLE_ELEMENTS + PARTS * digit) * WIDTH + lane
                    for step in range(0, PARTS * LIMBS * LANES, LANES):
                        s[ENTRY * WIDTH + lane + step] = s[place + step]
                _add(s, POINT, ENTRY)
        _as_entry(s, ENTRY, POINT)
        _add(s, TOTAL, ENTRY)
    _encode(s, POINT, TOTAL)
    _write(s, POINT, out, 0)

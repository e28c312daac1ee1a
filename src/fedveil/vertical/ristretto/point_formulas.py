"""The formulas of ristretto255 (RFC 9496), as programs for eight points at once.

Points have Edwards coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z and T = X Y / Z. An entry of a
table of multiples has (Y - X, Y + X, 2 d T, 2 Z), with the curve's constant d. The formulas hold
for all points, without branches. A program is an array of steps (operation, out, a, b, c) on
elements of a memory (`field_lanes`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedveil.base.array_types import Array

#: The operations: a b; a^(2^b); a + b; a - b; c in the lanes where mask a is set, else b; a mask of
#: the lanes where a is zero; a mask of those where a is odd; a reduced to [0, p - 1].
MULTIPLY, SQUARE, ADD, SUBTRACT, SELECT, ZERO, NEGATIVE, SHRINK = range(8)
P = 2**255 - 19
#: The number of entries in a table of multiples, and of elements in an entry.
ENTRIES, PARTS = 16, 4
_D = -121665 * pow(121666, -1, P) % P
_I = pow(2, (P - 1) // 4, P)


def _root(number: int) -> int:
    """Return the even square root of `number`, a square modulo p."""
    root = pow(number, (P + 3) // 8, P)
    root = root if (root * root - number) % P == 0 else root * _I % P
    return min(root, P - root, key=lambda one: one % 2)


#: The constants in the first elements of the memory.
CONSTANTS = (
    0, 1, 2, _D, 2 * _D % P, _I, (1 - _D * _D) % P, (_D - 1) ** 2 % P,
    P - _root((-_D - 1) % P), _root(pow(-1 - _D, -1, P)),
)  # fmt: skip
(_0, _1, _2, _EDWARDS, _EDWARDS_2, _IMAGINARY, _ONE_LESS_D2, _D_LESS_ONE_2, _ROOT_AD_1,
 _INVERSE_ROOT_A_D) = range(len(CONSTANTS))  # fmt: skip
#: Positions in the memory: temporary elements, points (four elements each), tables of multiples.
_T = 16
POINT, ENTRY, TOTAL, INVALID, TABLE = 40, 44, 48, 52, 56


class Program:
    """Collects steps. A step is an operation, the element that it overwrites, and its operands."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int, int, int]] = []

    def multiply(self, out: int, a: int, b: int) -> None:
        self.steps.append((MULTIPLY, out, a, b, 0))

    def square(self, out: int, a: int, times: int = 1) -> None:
        self.steps.append((SQUARE, out, a, times, 0))

    def add(self, out: int, a: int, b: int) -> None:
        self.steps.append((ADD, out, a, b, 0))

    def subtract(self, out: int, a: int, b: int) -> None:
        self.steps.append((SUBTRACT, out, a, b, 0))

    def select(self, out: int, mask: int, a: int, b: int) -> None:
        self.steps.append((SELECT, out, mask, a, b))

    def zero(self, out: int, a: int) -> None:
        self.steps.append((ZERO, out, a, 0, 0))

    def negative(self, out: int, a: int) -> None:
        self.steps.append((NEGATIVE, out, a, 0, 0))

    def shrink(self, out: int, a: int) -> None:
        self.steps.append((SHRINK, out, a, 0, 0))


def _power(s: Program, out: int, z: int) -> None:
    """Append steps that compute the element `z` to the power of (p - 5) / 8 into `out`."""
    a, b, c = _T, _T + 1, _T + 2
    s.square(a, z)
    s.square(b, a, 2)
    s.multiply(b, z, b)  # 9
    s.multiply(a, a, b)  # 11
    s.square(a, a)
    s.multiply(a, b, a)  # 2^5 - 1
    s.square(b, a, 5)
    s.multiply(a, b, a)  # 2^10 - 1
    s.square(b, a, 10)
    s.multiply(b, b, a)  # 2^20 - 1
    s.square(c, b, 20)
    s.multiply(b, c, b)  # 2^40 - 1
    s.square(b, b, 10)
    s.multiply(a, b, a)  # 2^50 - 1
    s.square(b, a, 50)
    s.multiply(b, b, a)  # 2^100 - 1
    s.square(c, b, 100)
    s.multiply(b, c, b)  # 2^200 - 1
    s.square(b, b, 50)
    s.multiply(a, b, a)  # 2^250 - 1
    s.square(a, a, 2)
    s.multiply(out, a, z)


def _absolute(s: Program, out: int, a: int) -> None:
    s.negative(_T, a)
    s.subtract(_T + 1, _0, a)
    s.select(out, _T, a, _T + 1)


def _root_of_ratio(s: Program, root: int, was_square: int, u: int, v: int) -> None:
    """Append steps that write to `root` a square root of u/v, or of i u/v if u/v is no square.

    i is √-1 (RFC 9496, 4.2). `was_square` becomes a mask of the lanes in which u/v is a square.
    """
    v3, power, check, flips = _T + 3, _T + 4, _T + 5, _T + 6
    s.square(v3, v)
    s.multiply(v3, v3, v)
    s.square(power, v3)
    s.multiply(power, power, v)
    s.multiply(power, power, u)
    _power(s, power, power)
    s.multiply(v3, v3, u)
    s.multiply(root, v3, power)
    s.square(check, root)
    s.multiply(check, check, v)
    s.subtract(v3, check, u)
    s.zero(was_square, v3)
    s.add(v3, check, u)
    s.zero(power, v3)
    s.select(was_square, power, was_square, power)
    s.multiply(v3, u, _IMAGINARY)
    s.add(v3, v3, check)
    s.zero(flips, v3)
    s.select(flips, power, flips, power)
    s.multiply(v3, root, _IMAGINARY)
    s.select(root, flips, root, v3)
    _absolute(s, root, root)


def _decode(s: Program, point: int, invalid: int) -> None:
    """Append steps that replace the encoding in `point` by its point (RFC 9496, 4.3.1).

    The element `invalid` becomes a mask of the lanes without a valid encoding.
    """
    number, u1, u2, u22, v, root = point, _T + 8, _T + 9, _T + 10, _T + 11, _T + 12
    good, x, y = _T + 13, _T + 14, _T + 15
    s.square(u2, number)
    s.subtract(u1, _1, u2)
    s.add(u2, _1, u2)
    s.square(u22, u2)
    s.square(v, u1)
    s.multiply(v, v, _EDWARDS)
    s.add(v, v, u22)
    s.subtract(v, _0, v)
    s.multiply(u22, u22, v)
    _root_of_ratio(s, root, good, _1, u22)
    s.multiply(x, root, u2)
    s.multiply(y, root, x)
    s.multiply(y, y, v)
    s.multiply(y, y, u1)
    s.multiply(x, x, number)
    s.add(x, x, x)
    _absolute(s, x, x)
    s.multiply(point + 3, x, y)
    s.negative(u1, point + 3)
    s.zero(u2, y)
    s.select(u1, u1, u2, u1)
    s.select(invalid, good, _1, u1)
    s.add(point, x, _0)
    s.add(point + 1, y, _0)
    s.add(point + 2, _1, _0)


def _encode(s: Program, out: int, point: int) -> None:
    """Append steps to `s` that encode a point as a field element (RFC 9496, 4.3.2).

    `point` and `out` are numbers of elements of the memory. The point's coordinates are in the
    elements `point` to `point + 3`, and its encoding is written to element `out`.
    """
    x, y, z, t = point, point + 1, point + 2, point + 3
    u1, u2, root, den1, den2, inverse = _T + 8, _T + 9, _T + 10, _T + 11, _T + 12, _T + 13
    rotated_x, rotated_y, mask, ignored = _T + 14, _T + 15, _T + 16, _T + 17
    s.add(u1, z, y)
    s.subtract(u2, z, y)
    s.multiply(u1, u1, u2)
    s.multiply(u2, x, y)
    s.square(mask, u2)
    s.multiply(mask, mask, u1)
    _root_of_ratio(s, root, ignored, _1, mask)
    s.multiply(den1, root, u1)
    s.multiply(den2, root, u2)
    s.multiply(inverse, den1, den2)
    s.multiply(inverse, inverse, t)
    s.multiply(rotated_y, x, _IMAGINARY)
    s.multiply(rotated_x, y, _IMAGINARY)
    s.multiply(den1, den1, _INVERSE_ROOT_A_D)
    s.multiply(mask, t, inverse)
    s.negative(mask, mask)
    s.select(rotated_x, mask, x, rotated_x)
    s.select(rotated_y, mask, y, rotated_y)
    s.select(den2, mask, den2, den1)
    s.multiply(u1, rotated_x, inverse)
    s.negative(mask, u1)
    s.subtract(u2, _0, rotated_y)
    s.select(rotated_y, mask, rotated_y, u2)
    s.subtract(u1, z, rotated_y)
    s.multiply(out, u1, den2)
    _absolute(s, out, out)
    s.shrink(out, out)


def _map(s: Program, out: int, t: int) -> None:
    """Append steps that map the number in `t` to a point in `out` (RFC 9496, 4.3.4)."""
    r, u, v, c, root, good, other, n = (
        _T + 8, _T + 9, _T + 10, _T + 11, _T + 12, _T + 13, _T + 14, _T + 15)  # fmt: skip
    s.square(r, t)
    s.multiply(r, r, _IMAGINARY)
    s.add(u, r, _1)
    s.multiply(u, u, _ONE_LESS_D2)
    s.subtract(c, _0, _1)
    s.multiply(v, r, _EDWARDS)
    s.subtract(v, c, v)
    s.add(n, r, _EDWARDS)
    s.multiply(v, v, n)
    _root_of_ratio(s, root, good, u, v)
    s.multiply(other, root, t)
    _absolute(s, other, other)
    s.subtract(other, _0, other)
    s.select(root, good, other, root)
    s.select(c, good, r, c)
    s.subtract(n, r, _1)
    s.multiply(n, n, c)
    s.multiply(n, n, _D_LESS_ONE_2)
    s.subtract(n, n, v)
    s.multiply(u, root, v)
    s.add(u, u, u)
    s.multiply(n, n, _ROOT_AD_1)
    s.square(c, root)
    s.subtract(r, _1, c)
    s.add(c, _1, c)
    s.multiply(out, u, c)
    s.multiply(out + 1, r, n)
    s.multiply(out + 2, n, c)
    s.multiply(out + 3, u, r)


def _double(s: Program, point: int, needs_t: bool) -> None:
    a, b, c, e, f, g, h = _T, _T + 1, _T + 2, _T + 3, _T + 4, _T + 5, _T + 6
    s.square(a, point)
    s.square(b, point + 1)
    s.square(c, point + 2)
    s.add(c, c, c)
    s.add(h, a, b)
    s.add(e, point, point + 1)
    s.square(e, e)
    s.subtract(e, h, e)
    s.subtract(g, a, b)
    s.add(f, c, g)
    s.multiply(point, e, f)
    s.multiply(point + 1, g, h)
    s.multiply(point + 2, f, g)
    if needs_t:
        s.multiply(point + 3, e, h)


def _add(s: Program, point: int, entry: int) -> None:
    a, b, c, e, f, g, h = _T, _T + 1, _T + 2, _T + 3, _T + 4, _T + 5, _T + 6
    s.subtract(a, point + 1, point)
    s.multiply(a, a, entry)
    s.add(b, point + 1, point)
    s.multiply(b, b, entry + 1)
    s.multiply(c, point + 3, entry + 2)
    s.multiply(g, point + 2, entry + 3)
    s.subtract(e, b, a)
    s.subtract(f, g, c)
    s.add(g, g, c)
    s.add(h, b, a)
    s.multiply(point, e, f)
    s.multiply(point + 1, g, h)
    s.multiply(point + 2, f, g)
    s.multiply(point + 3, e, h)


def _as_entry(s: Program, entry: int, point: int) -> None:
    s.subtract(entry, point + 1, point)
    s.add(entry + 1, point + 1, point)
    s.multiply(entry + 2, point + 3, _EDWARDS_2)
    s.add(entry + 3, point + 2, point + 2)


def _neutral(s: Program, point: int) -> None:
    s.add(point, _0, _0)
    s.add(point + 1, _1, _0)
    s.add(point + 2, _1, _0)
    s.add(point + 3, _0, _0)


def _fill_table(s: Program, table: int, point: int) -> None:
    """Append steps that write the multiples 0 to 15 of `point` to `table`. Overwrites `point`."""
    _neutral(s, ENTRY)
    _as_entry(s, table, ENTRY)
    _as_entry(s, table + PARTS, point)
    for entry in range(2, ENTRIES):
        _add(s, point, table + PARTS)
        _as_entry(s, table + PARTS * entry, point)


def _double_4(s: Program, point: int) -> None:
    for turn in range(4):
        _double(s, point, turn == 3)


def _program(write: Callable[..., None], *elements: int) -> Array:
    made = Program()
    write(made, *elements)
    return np.array(made.steps, np.int64)


#: `INVALID` gets a mask of the lanes whose encoding is invalid.
DECODE, ENCODE = _program(_decode, POINT, INVALID), _program(_encode, POINT, POINT)
MAP, FILL_TABLE = _program(_map, POINT, ENTRY), _program(_fill_table, TABLE, POINT)
NEUTRAL, DOUBLE_4 = _program(_neutral, POINT), _program(_double_4, POINT)
ADD_ENTRY, AS_ENTRY = _program(_add, POINT, ENTRY), _program(_as_entry, ENTRY, POINT)

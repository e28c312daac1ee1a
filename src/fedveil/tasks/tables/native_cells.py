"""Loops over the cells of a block of CSV text, in native code.

`block` has the text's bytes as UTF-8. The cell of a row has the bytes from `starts` to `ends`.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.kernels import compiled

#: Powers of ten that `numbers` multiplies by. Python's own reader takes numbers beyond them.
_LEAST, _MOST = -60, 60
#: The most digits of a number below 2^64.
_DIGITS = 19
#: What `numbers` notes about a column: a mark was there, it cannot separate thousands, a cell is
#: neither 0 nor 1.
POINT: Final = 1
COMMA: Final = 2
SURE_POINT: Final = 4
SURE_COMMA: Final = 8
NOT_BINARY: Final = 16


def _powers_of_five() -> Array:
    """Return the top 128 bits of powers of five, as two words. Negative powers are rounded up."""
    words = []
    for power in range(_LEAST, _MOST + 1):
        five = 5 ** abs(power)
        if power < 0:
            above = (five - 1).bit_length()
            five = (1 << (above + 127 if power >= -27 else 2 * above + 128)) // five + 1
        shift = five.bit_length() - 128
        bits = five >> shift if shift > 0 else five << -shift
        words.append((bits >> 64, bits & (2**64 - 1)))
    return np.array(words, np.uint64)


_FIVES = _powers_of_five()
_TENS = np.array([10.0**power for power in range(23)])
_LOW = np.uint64(2**32 - 1)
_HALF, _ONE = np.uint64(32), np.uint64(1)


@compiled()
def locate(block: Array, separator: int, kept: Array, starts: Array, ends: Array, most: int) -> int:
    """Find the cells of a block. Returns the number of rows, or -1 if CSV readers may disagree.

    `kept` has each column's index in `starts` and `ends`, or -1. `most` limits a line's bytes.
    """
    at, size, width, row = 0, len(block), len(kept), 0
    while at < size:
        line = at
        for column in range(width):
            quoted = at < size and block[at] == 34
            at += quoted
            start = at
            while at < size:
                code = block[at]
                if code == 34 or code == 10 or code == 13 or (code == separator and not quoted):
                    break
                at += 1
            if kept[column] >= 0:
                starts[row, kept[column]], ends[row, kept[column]] = start, at
            if quoted:
                if at == size or block[at] != 34:
                    return -1
                at += 1
            if column < width - 1:
                if at == size or block[at] != separator:
                    return -1
                at += 1
        if at == line:
            return -1
        if at < size and block[at] == 13:
            at += 1
            if at == size:
                return -1
        if at < size:
            if block[at] != 10:
                return -1
            at += 1
        if at - line > most:
            return -1
        row += 1
    return row


@compiled()
def _scaled(whole: np.uint64, power: int) -> float:
    """Return `whole` times 10 to the `power`, correctly rounded, or NaN if the rounding is unclear.

    The method is that of Lemire, Number parsing at a gigabyte per second (2021).
    """
    if whole == 0:
        return 0.0
    if whole <= 2**53 and -22 <= power <= 22:
        ten: float = _TENS[abs(power)]
        return float(whole) / ten if power < 0 else float(whole) * ten
    if power < _LEAST or power > _MOST:
        return np.nan
    shift = 0
    while not whole >> np.uint64(63):
        whole, shift = whole << _ONE, shift + 1
    high, low = _product(whole, _FIVES[power - _LEAST, 0])
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        more, _ = _product(whole, _FIVES[power - _LEAST, 1])
        low += more
        high += np.uint64(low < more)
    if low == np.uint64(2**64 - 1) and not -27 <= power <= 55:
        return np.nan
    upper = high >> np.uint64(63)
    dropped = upper + np.uint64(9)
    mantissa = high >> dropped
    even = low <= _ONE and -4 <= power <= 23 and mantissa & np.uint64(3) == _ONE
    if even and mantissa << dropped == high:  # halfway between two numbers: the even one
        mantissa -= _ONE
    mantissa = (mantissa + (mantissa & _ONE)) >> _ONE
    return math.ldexp(float(mantissa), ((217706 * power) >> 16) + 11 + int(upper) - shift)


@compiled()
def _product(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the high and the low word of a product."""
    a1, a0, b1, b0 = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    middle = a1 * b0 + (a0 * b0 >> _HALF)
    other = (middle & _LOW) + a0 * b1
    return a1 * b1 + (middle >> _HALF) + (other >> _HALF), a * b


@compiled()
def numbers(block: Array, starts: Array, ends: Array, values: Array, odd: Array) -> tuple[int, int]:
    """Read the numbers of a column, each with a point or a comma as its only mark.

    An empty cell becomes NaN. Writes the rows of unreadable cells to `odd`, and returns the number
    of these rows and what is known about the column's form.
    """
    many = noted = 0
    for row in range(len(values)):
        at, end = starts[row], ends[row]
        while at < end and block[at] == 32:
            at += 1
        while at < end and block[end - 1] == 32:
            end -= 1
        if at == end:
            values[row] = np.nan
            continue
        short = end - at == 1
        negative = block[at] == 45
        at += negative or block[at] == 43
        first, whole = at, np.uint64(0)
        while at < end and 48 <= block[at] <= 57:
            whole = whole * np.uint64(10) + np.uint64(block[at] - 48)
            at += 1
        before, after = at - first, 0
        if at < end and (block[at] == 46 or block[at] == 44):
            comma = block[at] == 44
            at += 1
            mark = at
            while at < end and 48 <= block[at] <= 57:
                whole = whole * np.uint64(10) + np.uint64(block[at] - 48)
                at += 1
            after = at - mark
            groups = after == 3 and 1 <= before <= 3 and block[first] != 48
            noted |= (COMMA if comma else POINT) * (1 if groups else 5)
        power, digits = -after, before + after
        while digits > _DIGITS and (block[first] == 48 or block[first] == 46 or block[first] == 44):
            digits -= block[first] == 48
            first += 1
        read = 0 < digits <= _DIGITS
        if read and at < end - 1 and block[at] | 32 == 101:
            at += 1
            below = block[at] == 45
            at += below or block[at] == 43
            read, stated = 1 <= end - at <= 4, 0
            while at < end and 48 <= block[at] <= 57:
                stated = stated * 10 + int(block[at]) - 48
                at += 1
            power += -stated if below else stated
        value = _scaled(whole, power) if read and at == end else np.nan
        if np.isnan(value):
            odd[many] = row
            many += 1
            continue
        if not (short and whole <= _ONE):
            noted |= NOT_BINARY
        values[row] = -value if negative else value
    return many, noted


@compiled()
def letters(block: Array, starts: Array, ends: Array, plain: Array, texts: Array) -> bool:
    """Write the letters of a column's cells to `texts`, filled up with zeros.

    Returns False if a cell is empty, or has a byte that is not `plain`.
    """
    for row in range(len(texts)):
        start, length = starts[row], ends[row] - starts[row]
        for at in range(length):
            if not plain[block[start + at]]:
                return False
            texts[row, at] = block[start + at]
        for at in range(length, texts.shape[1]):
            texts[row, at] = 0
        if length == 0:
            return False
    return True


@compiled()
def dates(block: Array, starts: Array, ends: Array, days: Array, odd: Array) -> int:
    """Read cells such as 2024-12-31 as days since 1970. An empty cell becomes NaN.

    Writes the rows of unreadable cells to `odd`, and returns the number of these rows.
    """
    many = 0
    for row in range(len(days)):
        at, whole, read = starts[row], 0, ends[row] - starts[row] == 10
        if starts[row] == ends[row]:
            days[row] = np.nan
            continue
        for place in range(10 if read else 0):
            code = block[at + place]
            if place == 4 or place == 7:
                read &= code == 45
            else:
                read &= 48 <= code <= 57
                whole = whole * 10 + code - 48
        year, month, day = whole // 10_000, whole // 100 % 100, whole % 100
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        last = 28 + leap if month == 2 else 30 if month in (4, 6, 9, 11) else 31
        if not (read and year >= 1 and 1 <= month <= 12 and 1 <= day <= last):
            odd[many] = row
            many += 1
            continue
        # Years are counted from March, so that a leap day is the last day of its year.
        after = (month + 9) % 12
        years = year - (month < 3)
        whole_days = 365 * years + years // 4 - years // 100 + years // 400
        days[row] = whole_days + (153 * after + 2) // 5 + day - 719_469
    return many


@compiled()
def distinct(
    block: Array, starts: Array, ends: Array, table: Array, codes: Array, firsts: Array
) -> int:
    """Number a column's distinct cells. Returns their number, or -1 if too many hashes collide.

    Writes each row's number to `codes`, and the first row with each number to `firsts`. `table` is
    zeros, and its length is a power of two above the number of rows.
    """
    count, mask, patience = 0, len(table) - 1, 16 * len(codes) + 1024
    for row in range(len(codes)):
        start, length = starts[row], ends[row] - starts[row]
        mixed = np.uint64(length)
        for at in range(start, start + length):
            mixed = (mixed ^ np.uint64(block[at])) * np.uint64(0x100000001B3)
        mixed ^= mixed >> np.uint64(29)
        slot = np.int64(mixed) & mask
        while True:
            code = table[slot] - 1
            if code < 0:
                firsts[count] = row
                count += 1
                table[slot], codes[row] = count, count - 1
                break
            other = starts[firsts[code]]
            if ends[firsts[code]] - other == length:
                at = 0
                while at < length and block[other + at] == block[start + at]:
                    at += 1
                if at == length:
                    codes[row] = code
                    break
            slot = (slot + 1) & mask
            patience -= 1
            if patience < 0:
                return -1
    return count

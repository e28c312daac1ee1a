"""Loops over the cells of a block of CSV text, in native code.

`block` has the text in UTF-8, then zeros. `cells` has the positions of each cell's first byte and
of the byte after its last one, in the shape (columns, rows, 2), or (rows, 2) for one column.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.kernels import compiled

#: The range of powers of ten that `numbers` can multiply by. Other numbers are left to Python.
_LEAST, _MOST = -60, 60
#: The most digits of a number below 2^64.
_DIGITS = 19
#: Flags that `numbers` sets: a cell has this mark (point or comma), the mark cannot separate
#: thousands, a cell is neither 0 nor 1.
POINT: Final = 1
COMMA: Final = 2
SURE_POINT: Final = 4
SURE_COMMA: Final = 8
NOT_BINARY: Final = 16
#: The zeros after a block's text, so that eight bytes can be read from each place of the text.
PADDING: Final = 8


def _powers_of_five() -> Array:
    """Return the top 128 bits of 5^n for n = -60..60: uint64s [121, 2], the high word first.

    The bits of 5^n are rounded up if n is negative.
    """
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
#: Constants of `_digits`. In the first four, each byte has the letter 0, the highest bit, the
#: distance from 10 to the highest bit, or 1. `_PAIRS` selects every fourth byte.
_ZEROS, _TOPS = np.uint64(0x3030303030303030), np.uint64(0x8080808080808080)
_TO_TOPS, _EACH = np.uint64(0x7676767676767676), np.uint64(0x0101010101010101)
_PAIRS, _WORD = np.uint64(0x000000FF000000FF), np.uint64(64)
_WHOLE_TENS = np.array([10**power for power in range(9)], np.uint64)


@compiled()
def find_marks(block: Array, is_mark: Array, marks: Array) -> int:
    """Write to `marks` the positions of all bytes of `block` that are marks. Returns their number.

    `is_mark[b]` is True if the byte b is a mark. The loop has no branch, because a processor cannot
    predict where a cell ends.
    """
    count = 0
    for at in range(len(block) - PADDING):
        marks[count] = at
        count += is_mark[block[at]]
    return count


@compiled()
def locate(block: Array, separator: int, marks: Array, kept: Array, cells: Array, most: int) -> int:
    """Write each cell's start and end in `block` to `cells`. Returns the number of rows, or -1.

    `marks` has the positions of all quotes, separators and line ends, and of the block's end. For
    each column of the file, `kept` has the column's index in `cells`, or -1 to skip the column.

    The result is -1 for ambiguous text: with a quote inside a cell, a line end inside quotes, a
    line end other than LF and CRLF, an empty line, too few or too many cells in a row, or a line
    above `most` bytes.
    """
    at, mark, row, size, width = 0, 0, 0, marks[-1], len(kept)
    while at < size:
        line = at
        for column in range(width):
            quoted = block[at] == 34
            if quoted:
                at, mark = at + 1, mark + 1
                while block[marks[mark]] == separator:
                    mark += 1
            end, place = marks[mark], kept[column]
            if place >= 0:
                cells[place, row, 0], cells[place, row, 1] = at, end
            at = end
            if quoted:
                if block[at] != 34:
                    return -1
                at, mark = at + 1, mark + 1
            if column < width - 1:
                if block[at] != separator:
                    return -1
                at, mark = at + 1, mark + 1
        if at == line:
            return -1
        if block[at] == 13:
            at, mark = at + 1, mark + 1
            if block[at] != 10:
                return -1
        if at < size:
            if block[at] != 10:
                return -1
            at, mark = at + 1, mark + 1
        if at - line > most:
            return -1
        row += 1
    return row


@compiled()
def _scaled(whole: np.uint64, power: int) -> float:
    """Return `whole` times 10 to the `power`, correctly rounded, or NaN if the rounding is unclear.

    The method is from Lemire, Number parsing at a gigabyte per second (2021).
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
    """Return the high and the low 64 bits of `a` times `b`."""
    a1, a0, b1, b0 = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    middle = a1 * b0 + (a0 * b0 >> _HALF)
    other = (middle & _LOW) + a0 * b1
    return a1 * b1 + (middle >> _HALF) + (other >> _HALF), a * b


@compiled()
def _word(block: Array, at: int) -> np.uint64:
    """Return the eight bytes from `at` on as a number, the least significant byte first."""
    word, first = np.uint64(0), np.uint64(at)
    for byte in range(8):  # becomes one instruction
        word |= np.uint64(block[first + np.uint64(byte)]) << np.uint64(8 * byte)
    return word


@compiled()
def _digits(block: Array, at: int, whole: np.uint64) -> tuple[int, np.uint64]:
    """Read the decimal digits of `block` from the position `at` on, and append them to `whole`.

    With `whole` 12, the digits 34 give 1234. Returns the position after the digits, and the new
    number.
    """
    count = np.uint64(8)
    while count == 8:
        word = _word(block, at) ^ _ZEROS  # a digit becomes its value, any other byte more than 9
        others = (((word & ~_TOPS) + _TO_TOPS) | word) & _TOPS
        before = ((others & (~others + _ONE)) >> np.uint64(7)) - _ONE  # all bytes before the first
        count = (before & _EACH) * _EACH >> np.uint64(56)
        # The digits move to the end of the word, after zeros. Then neighbours are joined.
        word = (word & before) << ((_WORD - np.uint64(8) * count) & np.uint64(63))
        word = word * np.uint64(10) + (word >> np.uint64(8))
        low, high = word & _PAIRS, word >> np.uint64(16) & _PAIRS
        word = (low * np.uint64(100 + (10**6 << 32)) + high * np.uint64(1 + (10**4 << 32))) >> _HALF
        whole = whole * _WHOLE_TENS[count] + word
        at += int(np.int64(count))
    return at, whole


@compiled()
def numbers(block: Array, cells: Array, values: Array, odd: Array) -> tuple[int, int]:
    """Read the numbers of a column to `values`. A cell may contain at most one point or comma.

    `cells`, [rows, 2], has each cell's start and end in `block`. An empty cell becomes NaN. Writes
    the rows of unreadable cells to `odd`, and returns their number. Also returns flags that tell
    how the cells are written, such as `COMMA`.
    """
    many = noted = 0
    for row in range(len(values)):
        at, end = cells[row, 0], cells[row, 1]
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
        first = at
        at, whole = _digits(block, at, np.uint64(0))
        before, after = at - first, 0
        if at < end and (block[at] == 46 or block[at] == 44):
            comma = block[at] == 44
            mark = at + 1
            at, whole = _digits(block, mark, whole)
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
            mark = at
            at, stated = _digits(block, mark, np.uint64(0))
            read = 1 <= at - mark <= 4
            power += int(-np.int64(stated) if below else np.int64(stated))
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
def letters(block: Array, cells: Array, plain: Array, texts: Array) -> bool:
    """Copy the bytes of each cell of a column to a row of `texts`, and fill the row with zeros.

    `cells`, [rows, 2], has each cell's start and end in `block`. `plain[b]` is True if a cell may
    contain the byte b. Returns True, or False if a cell is empty or has a byte that is not allowed.
    After False, `texts` is incomplete.
    """
    for row in range(len(texts)):
        start, length = cells[row, 0], cells[row, 1] - cells[row, 0]
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
def dates(block: Array, cells: Array, days: Array, odd: Array) -> int:
    """Read cells such as 2024-12-31 to `days`, as days since 1970. An empty cell becomes NaN.

    `cells`, [rows, 2], has each cell's start and end in `block`. Writes the rows of unreadable
    cells to `odd`, and returns the number of these rows.
    """
    many = 0
    for row in range(len(days)):
        at, whole, length = cells[row, 0], 0, cells[row, 1] - cells[row, 0]
        read = length == 10
        if length == 0:
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
def _first_bytes(block: Array, at: int, count: int) -> np.uint64:
    """Return the first `count` bytes from `at` on (at most eight) as a little-endian number."""
    others = np.uint64(8 * max(0, 8 - count))
    return _word(block, at) << others >> others


@compiled()
def distinct(block: Array, cells: Array, table: Array, codes: Array, firsts: Array) -> int:
    """Number the distinct cells of a column from 0. Returns how many there are.

    Returns -1 if too many cells collide in the hash table. `cells`, [rows, 2], has each cell's
    start and end in `block`. Writes the number of each row's cell to `codes`, and the first row
    with each number to `firsts`. `table` is memory for the hash table: zeros, whose length is a
    power of two above the number of rows.
    """
    count, mask, patience = 0, len(table) - 1, 16 * len(codes) + 1024
    for row in range(len(codes)):
        start, length = cells[row, 0], cells[row, 1] - cells[row, 0]
        mixed = np.uint64(length)
        for at in range(0, length, 8):
            word = _first_bytes(block, start + at, length - at)
            mixed = (mixed ^ word) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(32)
        slot = np.int64(mixed) & mask
        while True:
            code = table[slot] - 1
            if code < 0:
                firsts[count] = row
                count += 1
                table[slot], codes[row] = count, count - 1
                break
            other = cells[firsts[code], 0]
            if cells[firsts[code], 1] - other == length:
                at = 0
                while at < length:
                    left = length - at
                    own = _first_bytes(block, start + at, left)
                    if own != _first_bytes(block, other + at, left):
                        break
                    at += 8
                if at >= length:
                    codes[row] = code
                    break
            slot = (slot + 1) & mask
            patience -= 1
            if patience < 0:
                return -1
    return count

"""The inner loops of `DiscreteGaussian`, which draws whole numbers x with Pr[x] ∝ exp(-x² / 2s²).

The lowest place_bits bits of a magnitude |x| are called its place, and the other bits its cell: |x|
= cell · 2^place_bits + place. Random words choose the sign, the cell and the place of x. The
parameter s² is cell_variance · 4^place_bits: before draws are rejected, a cell y has a probability
proportional to exp(-y² / 2 cell_variance), and all places are equally likely.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Int32s, Int64s, Signed, Uint16s, Uint32s, Uint64s
from fedveil.base.kernels import compiled

PREFIX_BITS = 63  # of the uniform real that chooses a cell: a word without its sign bit
GUIDE_BITS = 16
GUIDE_SHIFT = PREFIX_BITS - GUIDE_BITS
UNDECIDED = -1

PLACE_WORD_BITS = 32
#: Covers a few rounding errors.
_ABOVE = 1 + 2.0**-40
#: Draws that are computed without a branch.
_BLOCK = 1 << 8


def _cells_numpy(words: Uint64s, thresholds: Uint64s, guide: Uint16s, out: Int64s) -> int:
    prefix = words >> np.uint64(1)
    out[:] = np.searchsorted(thresholds, prefix, side="right")
    undecided = (thresholds[out - 1] == prefix) & (out > 0)
    out[undecided] = UNDECIDED
    return int(np.count_nonzero(undecided))


@compiled(_cells_numpy)
def choose_cells(words: Uint64s, thresholds: Uint64s, guide: Uint16s, out: Int64s) -> int:
    """Write to out[i] the cell (high part of a magnitude |x|) that the word words[i] chooses.

    A word has 64 random bits. Its first 63 bits are read as an integer. The word chooses the first
    cell y whose `thresholds[y]` is above this integer. `guide` makes the search fast: its entry g
    is the first possible cell of words whose first 16 bits are g. Thresholds are rounded down, so
    an integer that equals a threshold does not decide the cell. out[i] is then -1. Returns the
    number of words that do not decide.
    """
    undecided = 0
    for i in range(len(words)):
        prefix = words[i] >> np.uint64(1)
        cell = int(guide[prefix >> np.uint64(GUIDE_SHIFT)])
        cell += int(thresholds[cell] <= prefix)  # no branch, which would often be mispredicted
        while thresholds[cell] <= prefix:
            cell += 1
        if cell > 0 and thresholds[cell - 1] == prefix:
            cell = UNDECIDED
            undecided += 1
        out[i] = cell
    return undecided


def _add_cells_numpy(
    words: Uint64s, thresholds: Uint64s, guide: Uint16s, values: Signed, listed: Int32s
) -> int:
    words = words[: len(values)]
    drawn, negative = np.empty(len(values), np.int64), (words & np.uint64(1)).astype(np.bool_)
    _cells_numpy(words, thresholds, guide, drawn)
    unsaid = np.flatnonzero((drawn == UNDECIDED) | (negative & (drawn == 0)))
    drawn[unsaid] = 0
    values += np.where(negative, -drawn, drawn)
    listed[: len(unsaid)] = unsaid
    return len(unsaid)


@compiled(_add_cells_numpy)
def add_cells(
    words: Uint64s, thresholds: Uint64s, guide: Uint16s, values: Signed, listed: Int32s
) -> int:
    """Add to each values[i] a draw x, which the random 64-bit word words[i] chooses.

    The word's last bit is the sign of x. Its first 63 bits, read as an integer, choose |x|: the
    first y whose `thresholds[y]` is above this integer. `guide` makes the search fast: its entry g
    is the first possible |x| of words whose first 16 bits are g.

    Two kinds of draws are left out, and their values[i] stays unchanged. If the integer equals a
    threshold, it does not decide |x|, because thresholds are rounded down. If x is a negative zero,
    it is rejected, because 0 would otherwise be drawn twice as often. Writes the indices of these
    draws to `listed`, and returns their number.
    """
    count = 0
    first = thresholds[0]
    for i in range(len(values)):
        word = words[i]
        prefix = word >> np.uint64(1)
        cell = np.int64(guide[prefix >> np.uint64(GUIDE_SHIFT)])
        cell += np.int64(thresholds[cell] <= prefix)  # as in `choose_cells`
        while thresholds[cell] <= prefix:
            cell += 1
        negative = np.int64(word & np.uint64(1))
        before = thresholds[cell - np.int64(cell > 0)]
        if (negative & np.int64(prefix < first)) | np.int64(before == prefix):  # no branch either
            listed[count] = i
            count += 1
        else:
            values[i] += (cell ^ -negative) + negative
    return count


def _add_placed_numpy(
    words: Uint64s,
    places: Uint32s,
    cells: Int64s,
    cell_variance: int,
    place_bits: int,
    values: Signed,
    listed: Int32s,
) -> int:
    count = len(values)
    words, places, cells = words[:count], places[:count], cells[:count]
    negative = (words & np.uint64(1)).astype(np.bool_)
    bits = PLACE_WORD_BITS - place_bits
    place = (places >> np.uint32(bits)).astype(np.int64)
    fraction = place * 2.0**-place_bits
    loss = fraction * (cells + 0.5 * fraction) * (1.0 / cell_variance)
    start = (places & np.uint32((1 << bits) - 1)) * 2.0**-bits
    drawn = (cells << place_bits) + place
    open_ = ~(start >= loss * _ABOVE) | (negative & (drawn == 0))
    values += np.where(open_, 0, np.where(negative, -drawn, drawn)).astype(values.dtype)
    found = np.flatnonzero(open_)
    listed[: len(found)] = found
    return len(found)


@compiled(_add_placed_numpy)
def add_placed(
    words: Uint64s,
    places: Uint32s,
    cells: Int64s,
    cell_variance: int,
    place_bits: int,
    values: Signed,
    listed: Int32s,
) -> int:
    """Add draw i to values[i] if it is certainly accepted. List the other draws for exact tests.

    The last bit of words[i] is the draw's sign (1 is minus). Its magnitude is m = cells[i] ·
    2^place_bits + place, where place is the number in the top `place_bits` bits of the 32-bit word
    places[i].

    `DiscreteGaussian` draws a uniform random number U in [0, 1) to accept or reject the draw. The
    lower bits of places[i] are the first binary digits of U. Negative zeros are rejected. Any other
    draw is accepted if U >= 1 - exp(-loss), where

        loss = place · (2 m - place) / 2s²,     s² = cell_variance · 4^place_bits.

    This loop only tests U >= loss. That is sufficient, because loss >= 1 - exp(-loss). It writes to
    `listed` the indices of all draws that it does not add: those that fail the test, and negative
    zeros. Returns the number of these indices.
    """
    bits = PLACE_WORD_BITS - place_bits
    units = 2.0**-bits, 2.0**-place_bits, 1.0 / cell_variance
    left_out, count = np.zeros(_BLOCK, np.int64), 0
    for start in range(0, len(values), _BLOCK):
        stop = min(start + _BLOCK, len(values))
        draws = words[start:stop], places[start:stop], cells[start:stop]
        if _add_certain(*draws, bits, *units, values[start:stop], left_out):
            for k in range(stop - start):
                if left_out[k]:
                    listed[count] = start + k
                    count += 1
    return count


@compiled()
def _add_certain(
    words: Uint64s,
    places: Uint32s,
    cells: Int64s,
    bits: int,
    unit: float,
    width: float,
    slope: float,
    values: Signed,
    left_out: Int64s,
) -> int:
    """Add draw i to values[i] if it is certainly accepted. Returns the number of draws left out.

    Let place_bits = 32 - `bits`. The last bit of words[i] is the draw's sign (1 is minus). Its
    magnitude is m = cells[i] · 2^place_bits + place, where place is the number in the top
    place_bits bits of the 32-bit word places[i]. The lowest `bits` bits of places[i] are the first
    binary digits of a uniform random number U in [0, 1). The draw is certainly accepted if U >=
    place · (2 m - place) / 2s², unless it is a negative zero. left_out[i] becomes 0 if the draw is
    added, otherwise 1.

    The factors are computed by the caller: `unit` = 2^-bits, `width` = 2^-place_bits, and `slope` =
    1 / cell_variance, where cell_variance is s² / 4^place_bits.
    """
    place_bits = PLACE_WORD_BITS - bits
    mask = np.uint32((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
    count = np.int64(0)
    for i in range(len(values)):
        place = np.int64(places[i] >> np.uint32(bits))
        fraction = place * width
        loss = fraction * (cells[i] + 0.5 * fraction) * slope
        start = np.float64(places[i] & mask) * unit
        magnitude = (cells[i] << place_bits) + place
        negative = np.int64(words[i] & np.uint64(1))
        left = (negative & np.int64(magnitude == 0)) | np.int64(not start >= loss * _ABOVE)
        left_out[i] = left
        count += left
        values[i] += ((magnitude ^ -negative) + negative) & (left - 1)
    return int(count)

"""The inner loops of `DiscreteGaussian`, which draws whole numbers x with Pr[x] ∝ exp(-x² / 2s²).

The lowest place_bits bits of a magnitude |x| are called its place, and the other bits its cell: |x|
= cell · 2^place_bits + place. Random words choose the sign, the cell and the place of x. The
parameter s² is cell_variance · 4^place_bits: before draws are rejected, a cell y has a probability
proportional to exp(-y² / 2 cell_variance), and all places are equally likely.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Bools, Int32s, Signed, Uint8s, Uint16s, Uint32s
from fedveil.base.kernels import compiled

PREFIX_BITS = 31  # of the uniform real that chooses a cell: a word without its sign bit
GUIDE_BITS = 14
GUIDE_SHIFT = PREFIX_BITS - GUIDE_BITS
UNDECIDED = -1

PLACE_WORD_BITS = 32
#: Cover a few rounding errors, of 32-bit and of 64-bit floats.
_ABOVE, _BELOW = np.float32(1 + 2.0**-20), 1 - 2.0**-40
#: Draws that are computed without a branch.
_BLOCK = 1 << 8


def _cells_numpy(words: Uint32s, thresholds: Uint32s, guide: Uint16s, out: Int32s) -> int:
    prefix = words >> np.uint32(1)
    out[:] = np.searchsorted(thresholds, prefix, side="right")
    undecided = (thresholds[out - 1] == prefix) & (out > 0)
    out[undecided] = UNDECIDED
    return int(np.count_nonzero(undecided))


@compiled(_cells_numpy)
def choose_cells(words: Uint32s, thresholds: Uint32s, guide: Uint16s, out: Int32s) -> int:
    """Write to out[i] the cell (high part of a magnitude |x|) that the word words[i] chooses.

    A word has 32 random bits. Its first 31 bits are read as an integer. The word chooses the first
    cell y whose `thresholds[y]` is above this integer. `guide` makes the search fast: its entry g
    is the first possible cell of words whose first 14 bits are g. Thresholds are rounded down, so
    an integer that equals a threshold does not decide the cell. out[i] is then -1. Returns the
    number of words that do not decide.
    """
    undecided = 0
    for i in range(len(words)):
        prefix = words[i] >> np.uint32(1)
        cell = int(guide[prefix >> np.uint32(GUIDE_SHIFT)])
        cell += int(thresholds[cell] <= prefix)  # no branch, which would often be mispredicted
        while thresholds[cell] <= prefix:
            cell += 1
        if cell > 0 and thresholds[cell - 1] == prefix:
            cell = UNDECIDED
            undecided += 1
        out[i] = cell
    return undecided


def _add_cells_numpy(
    words: Uint32s, thresholds: Uint32s, guide: Uint16s, values: Signed, listed: Int32s
) -> int:
    words = words[: len(values)]
    drawn, negative = np.empty(len(values), np.int32), (words & np.uint32(1)).astype(np.bool_)
    _cells_numpy(words, thresholds, guide, drawn)
    unsaid = np.flatnonzero((drawn == UNDECIDED) | (negative & (drawn == 0)))
    drawn[unsaid] = 0
    values += np.where(negative, -drawn, drawn)
    listed[: len(unsaid)] = unsaid
    return len(unsaid)


@compiled(_add_cells_numpy)
def add_cells(
    words: Uint32s, thresholds: Uint32s, guide: Uint16s, values: Signed, listed: Int32s
) -> int:
    """Add to each values[i] a draw x, which the random 32-bit word words[i] chooses.

    The word's last bit is the sign of x. Its first 31 bits, read as an integer, choose |x|: the
    first y whose `thresholds[y]` is above this integer. `guide` makes the search fast: its entry g
    is the first possible |x| of words whose first 14 bits are g.

    Two kinds of draws are left out, and their values[i] stays unchanged. If the integer equals a
    threshold, it does not decide |x|, because thresholds are rounded down. If x is a negative zero,
    it is rejected, because 0 would otherwise be drawn twice as often. Writes the indices of these
    draws to `listed`, and returns their number.
    """
    count = 0
    first = thresholds[0]
    for i in range(len(values)):
        word = words[i]
        prefix = word >> np.uint32(1)
        cell = np.int64(guide[prefix >> np.uint32(GUIDE_SHIFT)])
        cell += np.int64(thresholds[cell] <= prefix)  # as in `choose_cells`
        while thresholds[cell] <= prefix:
            cell += 1
        negative = np.int64(word & np.uint32(1))
        before = thresholds[cell - np.int64(cell > 0)]
        if (negative & np.int64(prefix < first)) | np.int64(before == prefix):  # no branch either
            listed[count] = i
            count += 1
        else:
            values[i] += (cell ^ -negative) + negative
    return count


def _add_placed_numpy(
    words: Uint32s,
    places: Uint32s,
    cells: Int32s,
    cell_variance: int,
    place_bits: int,
    values: Signed,
    rejected: Bools,
    listed: Int32s,
) -> int:
    count = len(values)
    words, places, cells = words[:count], places[:count], cells[:count]
    negative = (words & np.uint32(1)).astype(np.bool_)
    bits = PLACE_WORD_BITS - place_bits
    place = (places >> np.uint32(bits)).astype(np.int64)
    digits = (places & np.uint32((1 << bits) - 1)).astype(np.int64)
    half = np.float32(0.5)
    fraction = place.astype(np.float32) * np.float32(2.0**-place_bits)
    loss = fraction * (cells.astype(np.float32) + half * fraction) * np.float32(1 / cell_variance)
    start = digits.astype(np.float32) * np.float32(2.0**-bits)
    drawn = (cells.astype(np.int64) << place_bits) + place
    open_ = ~(start >= loss * _ABOVE) | (negative & (drawn == 0))
    values += np.where(open_, 0, np.where(negative, -drawn, drawn)).astype(values.dtype)
    found = np.flatnonzero(open_)
    surely = [
        _is_rejected(int(w), int(p), int(c), cell_variance, place_bits)
        for w, p, c in zip(words[found], places[found], cells[found], strict=True)
    ]
    rejected[: len(found)] = surely
    listed[: len(found)] = found
    return len(found)


@compiled(_add_placed_numpy)
def add_placed(
    words: Uint32s,
    places: Uint32s,
    cells: Int32s,
    cell_variance: int,
    place_bits: int,
    values: Signed,
    rejected: Bools,
    listed: Int32s,
) -> int:
    """Add draw i to values[i] if it is certainly accepted. List the other draws.

    The last bit of words[i] is the draw's sign (1 is minus). Its magnitude is m = cells[i] ·
    2^place_bits + place, where place is the number in the top `place_bits` bits of the 32-bit word
    places[i].

    `DiscreteGaussian` draws a uniform random number U in [0, 1) to accept or reject the draw. The
    lower bits of places[i] are the first binary digits of U. Negative zeros are rejected. Any other
    draw is accepted if U >= 1 - exp(-loss), where

        loss = place · (2 m - place) / 2s²,     s² = cell_variance · 4^place_bits.

    This loop only tests U >= loss. That is sufficient, because loss >= 1 - exp(-loss). It writes to
    `listed` the indices of all draws that it does not add: those that fail the test, and negative
    zeros. Returns the number of these indices. rejected[k] becomes True if draw listed[k] is
    certainly rejected. If it is False, exact arithmetic must decide.
    """
    bits = PLACE_WORD_BITS - place_bits
    units = np.float32(2.0**-bits), np.float32(2.0**-place_bits), np.float32(1 / cell_variance)
    left_out, count = np.zeros(_BLOCK, np.uint8), 0
    for start in range(0, len(values), _BLOCK):
        stop = min(start + _BLOCK, len(values))
        draws = words[start:stop], places[start:stop], cells[start:stop]
        if _add_certain(*draws, bits, *units, values[start:stop], left_out):
            for k in range(stop - start):
                if left_out[k]:
                    i = start + k
                    found = _is_rejected(words[i], places[i], cells[i], cell_variance, place_bits)
                    rejected[count], listed[count] = found, i
                    count += 1
    return count


@compiled()
def _add_certain(
    words: Uint32s,
    places: Uint32s,
    cells: Int32s,
    bits: int,
    unit: np.float32,
    width: np.float32,
    slope: np.float32,
    values: Signed,
    left_out: Uint8s,
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
    half = np.float32(0.5)
    count = np.int64(0)
    for i in range(len(values)):
        place = np.int32(places[i] >> np.uint32(bits))
        fraction = np.float32(place) * width
        loss = fraction * (np.float32(cells[i]) + half * fraction) * slope
        start = np.float32(np.int32(places[i] & mask)) * unit
        magnitude = (np.int64(cells[i]) << place_bits) + place
        negative = np.int64(words[i] & np.uint32(1))
        left = (negative & np.int64(magnitude == 0)) | np.int64(not start >= loss * _ABOVE)
        left_out[i] = left
        count += left
        values[i] += ((magnitude ^ -negative) + negative) & (left - 1)
    return int(count)


@compiled()
def _is_rejected(word: int, places: int, cell: int, cell_variance: int, place_bits: int) -> bool:
    """Return True if the draw of these words is certainly rejected. See `add_placed`.

    1 - e^-loss is at least loss - loss²/2, so a draw with U below that is rejected.
    """
    bits = PLACE_WORD_BITS - place_bits
    place, digits = places >> bits, places & ((1 << bits) - 1)
    if word & 1 and cell == 0 and place == 0:
        return True
    fraction = place * 2.0**-place_bits
    loss = fraction * (cell + 0.5 * fraction) / cell_variance
    return loss <= 1 and (digits + 1) * 2.0**-bits <= (loss - 0.5 * loss * loss) * _BELOW

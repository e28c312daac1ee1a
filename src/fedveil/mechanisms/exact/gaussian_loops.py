"""The inner loops of `DiscreteGaussian`: they draw |x| = cell · 2^place_bits + place."""

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
    """Write to `out` the cell (high part of |x|) that each random word chooses.

    A word chooses the first cell y with `thresholds[y]` above the word's first 63 bits. `guide`
    maps the word's first 16 bits to the first possible cell. A word is undecided, and gets -1, if
    its first 63 bits equal a threshold, because the true threshold has more bits. Returns the
    number of undecided words.
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
    """Add the draw x of words[i] to values[i], unless x is undecided or a negative zero.

    A word's last bit is the sign, and its other 63 bits choose |x| by `thresholds` and `guide`, as
    in `choose_cells`. Negative zeros are left out, because 0 would otherwise be drawn twice as
    often. Writes the indices of all entries that are left out to `listed`, and returns their
    number.
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
    """Add draw i to values[i] if it is certainly accepted. List the indices of all other draws.

    A draw is ± (cell · 2^place_bits + place). The sign is the last bit of words[i], the cell is
    cells[i], and the place is in the top `place_bits` bits of places[i]. The other bits of
    places[i] begin a uniform real. The draw is rejected if this real is below 1 - e^-loss, for
    loss = place · (2 · |x| - place) / 2s². It is certainly accepted if the real is at least the
    loss, because 1 - e^-loss is at most the loss. Negative zeros are listed too. Writes the indices
    to `listed`, and returns their number.
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
    """Add draw i to values[i] if it is certainly accepted, as in `add_placed`.

    Sets left_out[i] to 0 for an added draw, otherwise to 1. Returns the number of draws left out.
    `bits` is the number of low bits of places[i] that begin the uniform real. `unit` is 2^-bits,
    `width` is 2^-place_bits, and `slope` is 1 / cell_variance.
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

"""Fast and exact draws from the discrete Gaussian distribution, by tables."""

from __future__ import annotations

import bisect
import functools
import math
from fractions import Fraction

import numpy as np

from fedveil.base.array_types import Int32s, Int64s, Signed, Uint16s, Uint32s
from fedveil.base.validate import integer
from fedveil.entropy import Entropy
from fedveil.mechanisms.exact.gaussian_loops import (
    GUIDE_BITS,
    GUIDE_SHIFT,
    PLACE_WORD_BITS,
    PREFIX_BITS,
    UNDECIDED,
    add_cells,
    add_placed,
    choose_cells,
)

#: Limits for the variance of a cell table without and with places, which keep it in a core's cache.
_MAX_CELL_VARIANCE, _MAX_PLACED_VARIANCE = 1 << 24, 1 << 20
_MAX_PLACE_BITS = 18
#: Draws made at a time without and with places, so that the buffers stay in a core's own cache.
_WORDS_AT_ONCE, _CHUNK = 1 << 16, 1 << 15

_END = (1 << 32) - 1  # above every prefix

_GUARD_BITS = 96
_NEGLIGIBLE_BITS = 32


class DiscreteGaussian:
    """Draws whole numbers x with Pr[x] = exp(-x² / 2s²) / Σ_n exp(-n² / 2s²), exactly.

    The magnitude |x| is drawn in two parts. Its low `place_bits` bits are called the place, and its
    other bits the cell, so |x| = cell · 2^place_bits + place. If `place_bits` is 0, the cell is
    |x|. The parameter s² is cell_variance · 4^place_bits, a whole number. Draws are exact: if the
    first random bits do not decide a draw, more bits are read and compared in integer arithmetic.
    """

    # 1. One random word gives the sign and the first 31 bits of a uniform real U. The cell is the
    #    least y with U < Pr[Y <= y], where Pr[Y = y] ∝ exp(-y² / 2 cell_variance), y = 0, 1, ...
    # 2. A second word gives a uniform place. It also decides whether the draw is kept,
    #    with probability exp(-place · (2^(place_bits + 1) · cell + place) / 2s²). Without place
    #    bits, this step is left out.
    # 3. Minus zero is rejected, because zero would otherwise be drawn twice as often.
    #
    # The weights of steps 1 and 2 multiply to exp(-x² / 2s²). A rejected draw starts again at step
    # 1. For large s, less than one draw in a thousand is rejected.

    def __init__(self, cell_variance: int, place_bits: int = 0) -> None:
        self.place_bits = integer("place_bits", place_bits, 0, _MAX_PLACE_BITS)
        most = _MAX_PLACED_VARIANCE if place_bits else _MAX_CELL_VARIANCE
        self.cell_variance = integer("cell_variance", cell_variance, 1, most - 1)

    @classmethod
    def at_least(cls, variance: Fraction) -> DiscreteGaussian:
        """Return the distribution with the smallest available parameter s² >= `variance`."""
        if (whole := math.ceil(variance)) < _MAX_CELL_VARIANCE:
            return cls(whole)
        place_bits = 1
        while -(-variance // 4**place_bits) >= _MAX_PLACED_VARIANCE:
            place_bits += 1
        return cls(-(-variance // 4**place_bits), place_bits)

    @property
    def variance(self) -> int:
        """Return the parameter s² of the distribution: Pr[x] is proportional to exp(-x² / 2s²).

        If s >= 1, the distribution's true variance is between (1 - 1e-6) s² and s².
        """
        return self.cell_variance << (2 * self.place_bits)

    def draw(self, count: int, entropy: Entropy) -> Int64s:
        values = np.zeros(count, np.int64)
        self.add_to(values, entropy)
        return values

    def add_to(self, values: Signed, entropy: Entropy) -> None:
        """Add an independent draw to each entry of `values`, in place. 32-bit sums wrap around."""
        redo = self._add_places(values, entropy) if self.place_bits else self._add(values, entropy)
        if len(redo):
            more = np.zeros(len(redo), values.dtype)  # the same type, so that numba compiles once
            self.add_to(more, entropy)
            values[redo] += more

    def _add(self, values: Signed, entropy: Entropy) -> Int64s:
        """Add a draw to each entry of `values`, if `place_bits` is 0.

        A draw of a negative zero is rejected. Returns the indices of the entries whose draws were
        rejected. They are still unchanged.
        """
        table = _cell_table(self.cell_variance)
        words = np.empty(min(len(values), _WORDS_AT_ONCE), np.uint32)
        listed, again = np.empty(len(words), np.int32), [np.empty(0, np.int64)]
        for start in range(0, len(values), _WORDS_AT_ONCE):
            part = values[start : start + _WORDS_AT_ONCE]
            entropy.fill(words[: len(part)])
            found = listed[: add_cells(words, *table, part, listed)]
            zeros = words[found] >> np.uint32(1) < table[0][0]  # a negative zero
            again.append(start + found[zeros])
            for i in found[~zeros]:
                prefix, negative = divmod(int(words[i]), 2)
                cell = self._decide_cell(prefix, entropy)
                if cell or not negative:
                    _add_wrapping(part, i, -cell if negative else cell)
                else:
                    again.append(np.array([start + i]))
        return np.sort(np.concatenate(again))

    def _add_places(self, values: Signed, entropy: Entropy) -> Int64s:
        """Add a draw x to each entry of `values`, if `place_bits` is above 0.

        The two parts of |x| = cell · 2^place_bits + place are drawn separately. A draw can be
        rejected (see `add_placed`). Returns the indices of the entries whose draws were rejected.
        They are still unchanged.
        """
        size, law = min(len(values), _CHUNK), (self.cell_variance, self.place_bits)
        drawn = np.empty(2 * size, np.uint32)
        cells, listed = np.empty(size, np.int32), np.empty(size, np.int32)
        rejected, again = np.empty(size, np.bool_), [np.empty(0, np.int64)]
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            size = len(part)
            entropy.fill(drawn[: 2 * size])
            words, places = drawn[:size], drawn[size : 2 * size]
            self._choose_cells(words, cells[:size], entropy)
            count = add_placed(words, places, cells, *law, part, rejected, listed)
            for k in np.flatnonzero(~rejected[:count]):
                i = listed[k]
                magnitude = self._magnitude(int(cells[i]), int(places[i]))
                if self._decide_kept(magnitude, int(places[i]), entropy):
                    _add_wrapping(part, i, -magnitude if words[i] & np.uint32(1) else magnitude)
                else:
                    rejected[k] = True
            again.append(start + listed[:count][rejected[:count]].astype(np.int64))
        return np.concatenate(again)

    def _choose_cells(self, words: Uint32s, cells: Int32s, entropy: Entropy) -> None:
        """Write the cell that the random 32-bit word words[i] chooses to cells[i].

        A cell is the high part of a magnitude |x|. The last bit of a word is the sign of x, and the
        other 31 bits choose the cell. If they do not decide, further digits come from `entropy`.
        """
        if choose_cells(words, *_cell_table(self.cell_variance), cells):
            for i in np.flatnonzero(cells == UNDECIDED):
                cells[i] = self._decide_cell(int(words[i]) >> 1, entropy)

    def _magnitude(self, cell: int, place_word: int) -> int:
        """Return |x| = `cell` · 2^place_bits + place. `place_word` has place in its top bits."""
        return cell << self.place_bits | place_word >> (PLACE_WORD_BITS - self.place_bits)

    def _decide_cell(self, prefix: int, entropy: Entropy) -> int:
        """Return the cell that a uniform random number U chooses: the least y with U < Pr[Y <= y].

        Y is the cell of a draw x: all but the lowest `place_bits` bits of |x|. The 31 bits `prefix`
        are the first binary digits of U. They do not decide, so further digits are read from
        `entropy`.
        """
        bits = PREFIX_BITS
        while True:
            prefix, bits = _extend(prefix, bits, entropy)
            low, high = _cumulative(self.cell_variance, bits)
            cell = bisect.bisect_left(high, prefix)
            if cell < len(low) and prefix < low[cell]:
                return cell

    def _decide_kept(self, magnitude: int, place_word: int, entropy: Entropy) -> bool:
        """Return True if a draw x with |x| = `magnitude` is accepted: with probability exp(-loss).

        loss is place · (2 |x| - place) / 2s², where place is the number in the lowest `place_bits`
        bits of |x|, and s² is the distribution's parameter. The draw is accepted if a uniform
        random number U in [0, 1) is at least 1 - exp(-loss). The lowest 32 - `place_bits` bits of
        `place_word` are the first binary digits of U. Further digits come from `entropy`.
        """
        place = magnitude & ((1 << self.place_bits) - 1)
        loss = place * (2 * magnitude - place)  # place · (2 cell · 2^place_bits + place)
        bits = PLACE_WORD_BITS - self.place_bits
        prefix = place_word & ((1 << bits) - 1)
        while True:
            low, high = _exp_minus(loss, 2 * self.variance, bits)
            if prefix >= (1 << bits) - low:
                return True
            if prefix + 1 <= (1 << bits) - high:
                return False
            prefix, bits = _extend(prefix, bits, entropy)


def _add_wrapping(values: Signed, i: int, draw: int) -> None:
    """Add `draw` to values[i]. 32-bit sums wrap around, as those of whole arrays do."""
    values[i : i + 1] += np.array([draw]).astype(values.dtype)


def _extend(prefix: int, bits: int, entropy: Entropy) -> tuple[int, int]:
    return prefix << 64 | int.from_bytes(entropy.token(8), "little"), bits + 64


@functools.lru_cache(maxsize=16)
def _cell_table(variance: int) -> tuple[Uint32s, Uint16s]:
    """Return the two tables by which a random 32-bit word chooses a cell y: thresholds and a guide.

    A cell is the high part of a magnitude |x|. The cell Y of a draw is y with a probability
    proportional to exp(-y² / 2 variance). The thresholds are ⌊2^31 · Pr[Y <= y]⌋ for y = 0, 1, ...,
    followed by an end mark. A word chooses the first cell whose threshold is above the word's first
    31 bits. The guide speeds up this search: entry g is the first possible cell of the words whose
    first 14 bits are g.
    """
    low, high = _cumulative(variance, PREFIX_BITS)
    extra = 0
    while low != high:  # a threshold so near a whole number that its bounds lie on either side
        extra += 64
        wide_low, wide_high = _cumulative(variance, PREFIX_BITS + extra)
        low, high = [x >> extra for x in wide_low], [x >> extra for x in wide_high]
    last = bisect.bisect_left(low, (1 << PREFIX_BITS) - 1)
    thresholds = np.array([*low[: last + 1], _END], np.uint32)
    firsts = np.arange(1 << GUIDE_BITS, dtype=np.uint32) << np.uint32(GUIDE_SHIFT)
    return thresholds, np.searchsorted(thresholds, firsts, side="right").astype(np.uint16)


@functools.lru_cache(maxsize=4)
def _cumulative(variance: int, bits: int) -> tuple[list[int], list[int]]:
    """Return integers with low[y] <= ⌊2^bits · Pr[Y <= y]⌋ <= high[y], for y = 0, 1, ...

    Y is the cell (high part of a magnitude |x|), with Pr[Y = y] proportional to exp(-y² / 2
    variance). The lists end at the first y whose floor is 2^bits - 1.
    """
    # With q = exp(-1 / 2 variance), the weights are q^(y²). Each follows from the one before by the
    # factor q^(2y + 1). Factors are at most 1 and products are rounded down. So the error of a
    # product, in units of the last place, is at most the sum of its factors' errors, plus 1. All
    # weights after the last sum to at most the last weight / (1 - q) <= weight · (2 variance + 1).
    places = bits + _GUARD_BITS
    ratio, most = _exp_minus(1, 2 * variance, places)
    ratio_error = most - ratio
    square, square_error = ratio * ratio >> places, 2 * ratio_error + 1
    weight, weight_error = 1 << places, 0
    total = total_error = 0
    sums: list[tuple[int, int]] = []
    while weight >> _NEGLIGIBLE_BITS:
        total += weight
        total_error += weight_error
        sums.append((total, total + total_error))
        weight, weight_error = weight * ratio >> places, weight_error + ratio_error + 1
        ratio, ratio_error = ratio * square >> places, ratio_error + square_error + 1
    beyond = (weight + weight_error) * (2 * variance + 1)
    least, most = total, total + total_error + beyond
    low = [(below << bits) // most for below, _ in sums]
    high = [min((above << bits) // least, (1 << bits) - 1) for _, above in sums]
    return low, high


def _exp_minus(numerator: int, denominator: int, bits: int) -> tuple[int, int]:
    """Return two integers with low <= 2^bits · exp(-numerator / denominator) <= high."""
    places = bits + 64
    below = above = 1 << places
    low_sum, high_sum = below, above
    k = 0
    while above > 1 or k * denominator < 2 * numerator:
        k += 1
        below = below * numerator // (denominator * k)
        above = -(-above * numerator // (denominator * k))
        low_sum += below
        high_sum += above
    high_sum += 1  # what follows: terms below 1, each at most half the one before
    one = 1 << (bits + places)
    return one // high_sum, -(-one // low_sum)

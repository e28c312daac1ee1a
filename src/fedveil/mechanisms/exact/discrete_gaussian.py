"""Fast and exact draws from the discrete Gaussian distribution, by tables."""

from __future__ import annotations

import bisect
import functools
from fractions import Fraction

import numpy as np

from fedveil.base.array_types import Int64s, Signed, Uint16s, Uint64s
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

#: Limit for the variance of a cell table, which keeps it in a core's own cache.
_MAX_CELL_VARIANCE = 1 << 24
_MAX_PLACE_BITS = 16
_CHUNK = 1 << 14
#: Random words read at a time if there are no places: one for each draw.
_WORDS_AT_ONCE = 1 << 16

_END = (1 << 64) - 1  # above every prefix
_BELOW = 1 - 2.0**-40  # covers a few rounding errors

_GUARD_BITS = 96
_NEGLIGIBLE_BITS = 32


class DiscreteGaussian:
    """Draws whole numbers x with Pr[x] = exp(-x² / 2s²) / Σ_n exp(-n² / 2s²), exactly.

    The magnitude |x| is drawn in two parts. Its low `place_bits` bits are called the place, and its
    other bits the cell, so |x| = cell · 2^place_bits + place. If `place_bits` is 0, the cell is
    |x|. The parameter s² is cell_variance · 4^place_bits, a whole number. Draws are exact: if the
    first random bits do not decide a draw, more bits are read and compared in integer arithmetic.
    """

    # 1. One random word gives the sign and the first 63 bits of a uniform real U. The cell is the
    #    least y with U < Pr[Y <= y], where Pr[Y = y] ∝ exp(-y² / 2 cell_variance), y = 0, 1, ...
    # 2. A second, shorter word gives a uniform place. It also decides whether the draw is kept,
    #    with probability exp(-place · (2^(place_bits + 1) · cell + place) / 2s²). Without place
    #    bits, this step is left out.
    # 3. Minus zero is rejected, because zero would otherwise be drawn twice as often.
    #
    # The weights of steps 1 and 2 multiply to exp(-x² / 2s²). A rejected draw starts again at step
    # 1. For large s, less than one draw in a thousand is rejected.

    def __init__(self, cell_variance: int, place_bits: int = 0) -> None:
        self.cell_variance = integer("cell_variance", cell_variance, 1, _MAX_CELL_VARIANCE - 1)
        self.place_bits = integer("place_bits", place_bits, 0, _MAX_PLACE_BITS)

    @classmethod
    def at_least(cls, variance: Fraction) -> DiscreteGaussian:
        """Return the distribution with the smallest available parameter s² >= `variance`."""
        place_bits = 0
        while -(-variance // 4**place_bits) >= _MAX_CELL_VARIANCE:
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
        words = np.empty(min(len(values), _WORDS_AT_ONCE), np.uint64)
        listed, again = np.empty(len(words), np.int32), [np.empty(0, np.int64)]
        for start in range(0, len(values), _WORDS_AT_ONCE):
            part = values[start : start + _WORDS_AT_ONCE]
            entropy.fill(words[: len(part)])
            found = listed[: add_cells(words, *table, part, listed)]
            zeros = words[found] >> np.uint64(1) < table[0][0]  # a negative zero
            again.append(start + found[zeros])
            for i in found[~zeros]:
                prefix, negative = divmod(int(words[i]), 2)
                cell = self._decide_cell(prefix, entropy)
                if cell or not negative:
                    part[i] += -cell if negative else cell
                else:
                    again.append(np.array([start + i]))
        return np.sort(np.concatenate(again))

    def _add_places(self, values: Signed, entropy: Entropy) -> Int64s:
        """Add a draw x to each entry of `values`, if `place_bits` is above 0.

        The two parts of |x| = cell · 2^place_bits + place are drawn separately. A draw can be
        rejected (see `_keeps`). Returns the indices of the entries whose draws were rejected. They
        are still unchanged.
        """
        size = min(len(values), _CHUNK)  # so that the buffers stay in a core's own cache
        words, drawn = np.empty(size, np.uint64), np.empty(size, np.int64)
        places, listed = np.empty(size, np.uint32), np.empty(size, np.int32)
        again = [np.empty(0, np.int64)]
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            size = len(part)
            self._draw_cells(words[:size], drawn[:size], entropy)
            entropy.fill(places[:size])
            law = self.cell_variance, self.place_bits
            count = add_placed(words, places, drawn, *law, part, listed)
            rejected = [
                i
                for i in listed[:count].tolist()
                if not self._keeps(
                    int(words[i]) & 1, int(drawn[i]), int(places[i]), part, i, entropy
                )
            ]
            again.append(start + np.array(rejected, np.int64))
        return np.concatenate(again)

    def _draw_cells(self, words: Uint64s, cells: Int64s, entropy: Entropy) -> None:
        """Fill `words` with random 64-bit words, and write the cell of words[i] to cells[i].

        A cell is the high part of a magnitude |x|. The last bit of a word is the sign of x, and the
        other 63 bits choose the cell.
        """
        entropy.fill(words)
        if choose_cells(words, *_cell_table(self.cell_variance), cells):
            for i in np.flatnonzero(cells == UNDECIDED):
                cells[i] = self._decide_cell(int(words[i]) >> 1, entropy)

    def _keeps(
        self, negative: int, cell: int, place_word: int, values: Signed, i: int, entropy: Entropy
    ) -> bool:
        """Accept or reject draw i, which the fast loop `add_placed` left open.

        The draw's magnitude is m = `cell` · 2^place_bits + place, where place is the number in the
        top `place_bits` bits of the 32-bit word `place_word`. The draw is -m if `negative` is 1,
        otherwise m. The other bits of `place_word` are the first binary digits of a uniform random
        number U in [0, 1). Further digits come from `entropy`.

        The draw is accepted if U >= 1 - exp(-loss), where loss = place · (2 m - place) / 2s²,
        unless it is a negative zero. Adds an accepted draw to values[i], and returns True.
        """
        bits = PLACE_WORD_BITS - self.place_bits
        place, start = place_word >> bits, (place_word & ((1 << bits) - 1)) * 2.0**-bits
        magnitude, fraction = cell << self.place_bits | place, place * 2.0**-self.place_bits
        loss = fraction * (cell + 0.5 * fraction) / self.cell_variance
        if negative and magnitude == 0:
            return False
        # 1 - e^-loss is at least loss - loss²/2, so most rejections need no exact integers.
        if loss <= 1 and start + 2.0**-bits <= (loss - 0.5 * loss * loss) * _BELOW:
            return False
        if not self._decide_kept(magnitude, place_word, entropy):
            return False
        values[i] += -magnitude if negative else magnitude
        return True

    def _decide_cell(self, prefix: int, entropy: Entropy) -> int:
        """Return the cell that a uniform random number U chooses: the least y with U < Pr[Y <= y].

        Y is the cell of a draw x: all but the lowest `place_bits` bits of |x|. The 63 bits `prefix`
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


def _extend(prefix: int, bits: int, entropy: Entropy) -> tuple[int, int]:
    return prefix << 64 | int.from_bytes(entropy.token(8), "little"), bits + 64


@functools.lru_cache(maxsize=16)
def _cell_table(variance: int) -> tuple[Uint64s, Uint16s]:
    """Return the two tables by which a random 64-bit word chooses a cell y: thresholds and a guide.

    A cell is the high part of a magnitude |x|. The cell Y of a draw is y with a probability
    proportional to exp(-y² / 2 variance). The thresholds are ⌊2^63 · Pr[Y <= y]⌋ for y = 0, 1, ...,
    followed by an end mark. A word chooses the first cell whose threshold is above the word's first
    63 bits. The guide speeds up this search: entry g is the first possible cell of the words whose
    first 16 bits are g.
    """
    low, high = _cumulative(variance, PREFIX_BITS)
    extra = 0
    while low != high:  # a threshold so near a whole number that its bounds lie on either side
        extra += 64
        wide_low, wide_high = _cumulative(variance, PREFIX_BITS + extra)
        low, high = [x >> extra for x in wide_low], [x >> extra for x in wide_high]
    last = bisect.bisect_left(low, (1 << PREFIX_BITS) - 1)
    thresholds = np.array([*low[: last + 1], _END], np.uint64)
    firsts = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(GUIDE_SHIFT)
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

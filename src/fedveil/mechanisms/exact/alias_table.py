"""Exact draws from finite distributions, by alias tables with 64-bit integer weights.

The possible outcomes of a distribution are called symbols. A table cannot hold arbitrary
probabilities exactly. So each symbol's weight in the table is slightly too small. One more symbol,
the remainder, has the missing weight, which is about 2^-38 of the total. If the remainder is drawn,
a second draw in exact integers chooses the symbol. So draws are exact although the tables are
computed in floating point.

Walker's alias method puts the weights into 2^b columns of equal weight. Two symbols share each
column, divided by a threshold. A draw reads a word of 32 bits. Its top b bits choose the column.
The other bits are compared with the upper bits of the threshold. If they are equal, 32 more bits
decide the draw.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Bools, Float64s, Int32s, Uint32s, Uint64s
from fedveil.base.kernels import compiled
from fedveil.entropy import Entropy

#: More than the relative error of the given probabilities.
_SHORTFALL = 2.0**-38
#: One block of keystream: 256 KiB.
_BLOCK = 1 << 16

_Weights = Uint64s


class AliasTables:
    """Draws exactly from several distributions over the same outcomes (symbols).

    Row r of `probabilities` is the r-th distribution, with one entry for each symbol: the symbol's
    probability as a float, which may exceed the exact one by a relative error of at most 2^-39.
    `exact(r)` returns an integer weight for each symbol. These weights are proportional to the
    exact probabilities of the r-th distribution.

    In `draw` and `draw_from`, the number of the first distribution is `first_row`, and the number
    of the first symbol is `first_symbol`. All other methods count both from 0.
    """

    def __init__(
        self,
        probabilities: Float64s,
        exact: Callable[[int], Sequence[int]],
        first_row: int = 0,
        first_symbol: int = 0,
    ) -> None:
        rows, symbols = probabilities.shape
        self._exact = exact
        self._first_row = first_row
        self._first_symbol = first_symbol
        self._symbols = symbols
        self._bits = symbols.bit_length()  # columns for the symbols and for the remainder
        self._entries = np.empty((rows, 1 << self._bits), np.uint32)
        self._lower = np.empty_like(self._entries)
        for row in range(rows):
            thresholds, partners = _share_out(self._weights(probabilities[row]))
            self._lower[row] = thresholds & np.uint64(0xFFFFFFFF)
            self._entries[row] = (thresholds >> np.uint64(32) << np.uint64(self._bits)) | partners

    def _weights(self, law: Float64s) -> _Weights:
        """Convert the probabilities `law` of one distribution to integer weights that sum to 2^64.

        The result has the weights of the symbols, then that of the remainder (the extra symbol that
        leads to a second draw), then zeros up to the number of columns.
        """
        weights = np.zeros(1 << self._bits, np.uint64)
        weights[: self._symbols] = np.ldexp(law * (1 - _SHORTFALL), 64).astype(np.uint64)
        remainder = (1 << 64) - int(weights.sum(dtype=np.uint64))
        # The remainder lies below one upper digit, so a draw of it is always undecided at first.
        if not 0 < remainder < 1 << 32:
            raise ArithmeticError("the probabilities of a table do not sum to one")
        weights[self._symbols] = remainder
        return weights

    def draw(self, rows: npt.NDArray[np.signedinteger[Any]], entropy: Entropy, out: Array) -> None:
        """Fill `out` with independent draws: out[i] is from distribution number rows[i]."""
        for begin in range(0, len(rows), _BLOCK):
            part = slice(begin, begin + _BLOCK)
            self._draw_block(rows[part], entropy, out[part])

    def draw_from(self, row: int, entropy: Entropy, out: Array) -> None:
        """Fill `out` with independent draws, all from the distribution number `row`."""
        entries = self._entries[row - self._first_row]
        for begin in range(0, len(out), _BLOCK):
            part = out[begin : begin + _BLOCK]
            words = np.empty(len(part), np.uint32)
            entropy.fill(words)
            ties = _pick_from(entries, self._bits, self._first_symbol, words, part)
            undecided = np.flatnonzero(_tied(entries, self._bits, words)) if ties else ()
            for i in undecided:
                part[i] = self._decide(row - self._first_row, int(words[i]), entropy)
                part[i] += self._first_symbol

    def _draw_block(
        self, rows: npt.NDArray[np.signedinteger[Any]], entropy: Entropy, out: Array
    ) -> None:
        words = np.empty(len(rows), np.uint32)
        undecided = np.empty(len(rows), np.int32)
        entropy.fill(words)
        count = _pick(
            self._entries, self._bits, self._first_row, self._first_symbol,
            rows, words, out, undecided,
        )  # fmt: skip
        for i in undecided[:count]:
            row = int(rows[i]) - self._first_row
            out[i] = self._decide(row, int(words[i]), entropy) + self._first_symbol

    def _decide(self, row: int, word: int, entropy: Entropy) -> int:
        """Decide a draw for which 32 random bits, `word`, are not enough. Returns its symbol.

        Reads 32 more bits. If these choose the remainder, which is an extra symbol of the table, a
        second draw in exact integers chooses one of the distribution's own symbols. `row` is the
        number of the distribution, counted from 0. The symbol is counted from 0, too.
        """
        column = word >> (32 - self._bits)
        entry = int(self._entries[row, column])
        digits = (word << 32 | entropy.integer(1 << 32)) & ((1 << (64 - self._bits)) - 1)
        threshold = entry >> self._bits << 32 | int(self._lower[row, column])
        symbol: int = column if digits < threshold else entry & ((1 << self._bits) - 1)
        if symbol < self._symbols:
            return symbol
        remainders = self.remainders(row)
        return bisect_right(list(accumulate(remainders)), entropy.integer(sum(remainders)))

    def weights(self, row: int) -> list[int]:
        """Return the weights of the symbols in a table, and last the weight of the remainder.

        The remainder is an extra symbol, which leads to a second draw. The weights are integers
        that sum to 2^64. `row` is the number of the table's distribution, counted from 0.
        """
        capacity = 1 << (64 - self._bits)
        weights = [0] * (1 << self._bits)
        for column in range(1 << self._bits):
            entry = int(self._entries[row, column])
            threshold = entry >> self._bits << 32 | int(self._lower[row, column])
            weights[column] += threshold
            weights[entry & ((1 << self._bits) - 1)] += capacity - threshold
        return weights[: self._symbols + 1]

    def remainders(self, row: int) -> list[int]:
        """Return the weights of the symbols in the second draw.

        The second draw is made if the first one gives the remainder, an extra symbol of the table.
        A weight is proportional to the symbol's exact probability minus its probability in the
        table of distribution `row`, which counts from 0.
        """
        exact = self._exact(row)
        total = sum(exact)
        pairs = zip(exact, self.weights(row), strict=False)
        missing = [(e << 64) - w * total for e, w in pairs]
        if min(missing) < 0:
            raise ArithmeticError("a table gives a symbol more than its true probability")
        return missing


def _share_out(weights: _Weights) -> tuple[_Weights, _Weights]:
    """Build an alias table. Returns the threshold and the second symbol of each column.

    weights[k] is the weight of symbol k. Their sum is 2^64. The table has one column for each
    symbol, and all columns have the same weight, w = 2^64 / len(weights). A draw chooses a column k
    and a number in 0..w-1. It gives symbol k if this number is below the threshold, otherwise the
    second symbol.
    """
    # A symbol whose weight fills less than a column is topped up by the current heavy symbol. A
    # heavy symbol whose weight has fallen below a column is topped up by the next heavy symbol.
    # Running sums of the missing and the spare weights give the pairs. The sums stay below 2^64.
    capacity = np.uint64(2**64 // len(weights))
    heavy = np.flatnonzero(weights >= capacity)
    light = np.flatnonzero(weights < capacity)
    spare = np.cumsum(weights[heavy] - capacity, dtype=np.uint64)
    lacking = np.zeros(len(light) + 1, np.uint64)
    np.cumsum(capacity - weights[light], dtype=np.uint64, out=lacking[1:])

    thresholds = weights.copy()
    partners = np.arange(len(weights), dtype=np.uint64)
    partners[light] = heavy[np.searchsorted(spare, lacking[:-1], side="right")]
    given = lacking[np.searchsorted(lacking, spare, side="left")]
    thresholds[heavy] = capacity + spare - given
    partners[heavy[:-1]] = heavy[1:]
    full = np.flatnonzero(thresholds == capacity)
    thresholds[full] = 0  # a threshold cannot hold a full column, so the symbol is its own partner
    partners[full] = full
    return thresholds, partners


def _pick_numpy(
    entries: Uint32s,
    bits: int,
    first_row: int,
    first_symbol: int,
    rows: npt.NDArray[np.signedinteger[Any]],
    words: Uint32s,
    out: Array,
    undecided: Int32s,
) -> int:
    columns = words >> np.uint32(32 - bits)
    digits = words & np.uint32((1 << (32 - bits)) - 1)
    picked = entries[rows.astype(np.int64) - first_row, columns]
    upper = picked >> np.uint32(bits)
    partners = picked & np.uint32((1 << bits) - 1)
    out[:] = np.where(digits < upper, columns, partners).astype(np.int64) + first_symbol
    ties = np.flatnonzero(digits == upper)
    undecided[: len(ties)] = ties
    return len(ties)


@compiled(_pick_numpy)
def _pick(
    entries: Uint32s,
    bits: int,
    first_row: int,
    first_symbol: int,
    rows: npt.NDArray[np.signedinteger[Any]],
    words: Uint32s,
    out: Array,
    undecided: Int32s,
) -> int:
    """Write to out[i] a symbol of the distribution rows[i], chosen by the 32-bit word words[i].

    `entries` has the tables of all distributions, one per row. The top `bits` bits of a word choose
    a column of the table. The word's other bits are compared with the upper bits of the column's
    threshold. If they are equal, the draw needs more bits: the function writes the indices of such
    draws to `undecided`, and returns their number. Distributions and symbols are numbered from
    `first_row` and `first_symbol`.
    """
    column_shift, upper_shift = np.uint32(32 - bits), np.uint32(bits)
    digit_mask = np.uint32((1 << (32 - bits)) - 1)
    partner_mask = np.uint32((1 << bits) - 1)
    count = 0
    for i in range(len(rows)):
        word = words[i]
        column = word >> column_shift
        row = np.uint64(rows[i] - first_row)  # unsigned, so that negative indices need no check
        entry = entries[row, column]
        digits = word & digit_mask
        upper = entry >> upper_shift
        symbol = np.int32(column) if digits < upper else np.int32(entry & partner_mask)
        out[i] = symbol + first_symbol
        if digits == upper:
            undecided[count] = i
            count += 1
    return count


def _tied(entries: Uint32s, bits: int, words: Uint32s) -> Bools:
    """Return a mask of the words that do not decide between the two symbols of their column.

    `entries` is the table of one distribution. The top `bits` bits of a word choose a column. The
    word does not decide if its other bits equal the upper bits of the column's threshold.
    """
    upper = entries[words >> np.uint32(32 - bits)] >> np.uint32(bits)
    tied: Bools = (words & np.uint32((1 << (32 - bits)) - 1)) == upper
    return tied


def _pick_from_numpy(
    entries: Uint32s, bits: int, first_symbol: int, words: Uint32s, out: Array
) -> bool:
    rows, undecided = np.zeros(len(words), np.int16), np.empty(len(words), np.int32)
    return _pick_numpy(entries[np.newaxis], bits, 0, first_symbol, rows, words, out, undecided) > 0


@compiled(_pick_from_numpy)
def _pick_from(entries: Uint32s, bits: int, first_symbol: int, words: Uint32s, out: Array) -> bool:
    """Write to out[i] a symbol of one distribution, chosen by the random 32-bit word words[i].

    `entries` is the distribution's table. The top `bits` bits of a word choose a column of the
    table. The word's other bits are compared with the upper bits of the column's threshold. If they
    are equal, the draw needs more bits, and out[i] is not final. Returns True if there is such a
    draw. Symbols are numbered from `first_symbol`.
    """
    column_shift, upper_shift = np.uint32(32 - bits), np.uint32(bits)
    digit_mask = np.uint32((1 << (32 - bits)) - 1)
    partner_mask = np.uint32((1 << bits) - 1)
    ties = False
    for i in range(len(words)):
        word = words[i]
        column = word >> column_shift
        entry = entries[column]
        digits = word & digit_mask
        upper = entry >> upper_shift
        symbol = np.int32(column) if digits < upper else np.int32(entry & partner_mask)
        out[i] = symbol + first_symbol
        ties |= digits == upper
    return ties

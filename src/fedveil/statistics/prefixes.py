"""The prefixes of unknown words, counted round after round along a tree.

In round l, the candidates are the frequent prefixes of l - 1 letters, each followed by every letter
of the alphabet or by the end of the word. So the words themselves need not be known, and the number
of candidates stays small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.entropy import Entropy
from fedveil.statistics.encodings import Cells, Rows
from fedveil.statistics.tables import Table

#: Ends a word that is shorter than the longest.
END = "\0"
#: Frequent prefixes that are kept, for each word that is asked for.
_KEPT = 8


class Prefixes(Cells):
    """One-hot codes of a word's prefix among `candidates`, which all have the same length.

    A word longer than `length` is cut. A word with a letter outside the `alphabet` does not count.
    """

    def __init__(self, column: str, candidates: Sequence[str], alphabet: str, length: int) -> None:
        super().__init__()
        self.column, self.candidates = column, list(candidates)
        self._letters, self._longest = set(alphabet), length
        self.width = len(self.candidates)

    def rows(self, table: Table, entropy: Entropy) -> Rows:
        place = {prefix: number for number, prefix in enumerate(self.candidates)}
        size = max(len(prefix) for prefix in self.candidates)
        known, inverse = np.unique(table.words(self.column), return_inverse=True)
        foreign = np.array([not word or not set(word) <= self._letters for word in known.tolist()])
        cut = np.array([len(word) > self._longest for word in known.tolist()])
        cells = np.array(
            [
                -1 if out else place.get((word[: self._longest] + END)[:size], -1)
                for word, out in zip(known.tolist(), foreign.tolist(), strict=True)
            ]
        )
        return Rows(self.width, cut[inverse], foreign[inverse], cells[inverse])


class PrefixTree:
    """The frequent prefixes after each round, and the words that have ended."""

    def __init__(self, alphabet: str, length: int, most: int) -> None:
        self._alphabet, self._length = alphabet, length
        self._kept, self._size = _KEPT * most, 0
        self._alive: list[str] = [""]
        #: Each ended word with its estimated count, and the variance of the noise in it.
        self.found: dict[str, tuple[float, float]] = {}

    @property
    def rounds(self) -> int:
        """The largest number of rounds: one for each letter."""
        return self._length

    @property
    def over(self) -> bool:
        """True if no prefix is left to extend."""
        return not self._alive or self._size == self._length

    def candidates(self) -> list[str]:
        """Return the prefixes of the next round."""
        letters = self._alphabet + (END if self._size else "")
        return [prefix + letter for prefix in self._alive for letter in letters]

    def answered(self, candidates: Sequence[str], counts: Float64s, variance: Float64s) -> None:
        """Keep the frequent prefixes, given the candidates' estimated counts.

        A count is kept if it exceeds the largest noise to be expected among all candidates, which
        is √(2 ln k) standard deviations for k of them.
        """
        self._size += 1
        level = math.sqrt(2 * math.log(max(len(candidates), 2)))
        order = np.argsort(-counts, kind="stable")
        chosen = [int(i) for i in order if counts[i] > level * math.sqrt(variance[i])]
        self._alive = []
        for i in chosen[: self._kept]:
            word = candidates[i]
            if word.endswith(END) or self._size == self._length:
                self.found[word.rstrip(END)] = float(counts[i]), float(variance[i])
            else:
                self._alive.append(word)

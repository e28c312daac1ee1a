"""Finds frequent words that are not known in advance, by growing frequent prefixes round by round.

The candidates of a round are the frequent prefixes of the previous round, each extended by further
letters of the alphabet or by the end of the word. If the question has groups, each row is in only
one, so all groups' candidates together are the cells of one one-hot code. Under rr and oue, each
round asks different clients, and the last round asks three times as many as each earlier round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.base.array_types import Bools, Float64s
from fedveil.base.lazy import special
from fedveil.entropy import Entropy
from fedveil.statistics.encodings import Axis, Cells, Rows
from fedveil.statistics.question_settings import QuestionSettings
from fedveil.statistics.tables import Table

#: Marks the end of a word that is shorter than `length`.
END = "\0"
#: The number of prefixes to keep, for each requested word.
KEPT = 8
#: The largest number of candidates in a round. The second one is for rr and oue, with reports of
#: 256 kB.
MOST_CANDIDATES, MOST_BITS = 1 << 18, 1 << 21


def _candidates(prefixes: int, alphabet: int, letters: int) -> int:
    return int(prefixes * sum(alphabet**added for added in range(letters + 1)))


def letters_of(question: QuestionSettings, *, local: bool) -> list[int]:
    """Return, for each round of a heavy_hitters question, how many letters it adds to a prefix.

    If `local` is True (under rr and oue), there are as few rounds as possible: a round may add
    several letters, as long as its candidates fit into one report. Otherwise each round adds one
    letter.
    """
    if not local:
        return [1] * question.length
    letters = len(question.alphabet)
    first, later = (
        max((n for n in range(1, 22) if _candidates(prefixes, letters, n) <= MOST_BITS), default=1)
        for prefixes in (_groups(question), _groups(question) * KEPT * question.most)
    )
    rounds = 1 + max(0, math.ceil((question.length - first) / later))
    each = min(later, math.ceil(question.length / rounds))
    return [question.length - (rounds - 1) * each, *[each] * (rounds - 1)]


def _groups(question: QuestionSettings) -> int:
    return max(1, len(question.groups))


def too_many(question: QuestionSettings) -> bool:
    """Return True if a round of `question` has too many candidate prefixes for one report."""
    prefixes = _groups(question) * KEPT * question.most
    return _candidates(prefixes, len(question.alphabet), 1) > MOST_CANDIDATES


def extended(prefixes: Sequence[str], question: QuestionSettings, letters: int) -> list[str]:
    """Return the candidates of a round: every extension of each of the `prefixes`.

    An extension appends `letters` letters of the question's alphabet, or fewer letters and then an
    end mark.
    """
    return [word for prefix in prefixes for word in _extended(prefix, question, letters)]


def _extended(prefix: str, question: QuestionSettings, letters: int) -> Iterator[str]:
    if letters == 0:
        yield prefix
        return
    if prefix:
        yield prefix + END
    for letter in question.alphabet:
        yield from _extended(prefix + letter, question, letters - 1)


class Prefixes(Cells):
    """One-hot codes of rows: a row's cell is the candidate prefix with which its word begins.

    `candidates[g]` lists the prefixes for rows in group g of the question (g is 0 if it has no
    groups). A word of more than `length` letters is shortened to `length`. A row is excluded if its
    word is missing or has a letter outside the `alphabet`.
    """

    def __init__(
        self, question: QuestionSettings, candidates: Sequence[Sequence[str]], *groups: Axis
    ) -> None:
        super().__init__(*groups)
        assert question.column is not None, "the rules have checked it"
        self.column, self.candidates = question.column, candidates
        self._letters, self._longest = set(question.alphabet), question.length
        self.width = sum(map(len, candidates))

    def rows(self, table: Table, entropy: Entropy) -> Rows:
        group = super().rows(table, entropy)
        assert group.cells is not None, "an axis has cells"
        of_all = enumerate((g, word) for g, words in enumerate(self.candidates) for word in words)
        place = {candidate: number for number, candidate in of_all}
        size = max(len(word) for _, word in place)
        known, inverse = np.unique(table.words(self.column), return_inverse=True)
        foreign = np.array([not word or not set(word) <= self._letters for word in known.tolist()])
        cut = np.array([len(word) > self._longest for word in known.tolist()])[inverse]
        begun = [(word[: self._longest] + END)[:size] for word in known.tolist()]
        groups = range(len(self.candidates))
        cells = np.array([[place.get((g, word), -1) for word in begun] for g in groups])
        lost = group.lost | foreign[inverse]
        return Rows(self.width, cut & ~lost, lost, np.where(lost, -1, cells[group.cells, inverse]))


@dataclass(frozen=True)
class Found:
    """A complete word, its estimated count and variance, and the round that counted it."""

    group: int
    word: str
    count: float
    variance: float
    round: int


class PrefixTree:
    """The frequent prefixes of each group after the latest round, and the complete words so far."""

    def __init__(self, question: QuestionSettings, *, local: bool) -> None:
        self.question, self._local = question, local
        self.letters = letters_of(question, local=local)
        self._done = 0
        self.prefixes = [[""] for _ in range(_groups(question))]
        self.found: list[Found] = []

    @property
    def rounds(self) -> int:
        """The largest possible number of rounds of a heavy_hitters question."""
        return len(self.letters)

    @property
    def shares(self) -> list[float]:
        """The share of the clients that each round asks under rr and oue. The shares sum to 1."""
        weights = [1.0] * (self.rounds - 1) + [3.0 if self.rounds > 1 else 1.0]
        return [weight / sum(weights) for weight in weights]

    @property
    def over(self) -> bool:
        """True if no prefix is left to extend, or if the last round is done."""
        return not any(self.prefixes) or self._done == self.rounds

    def size(self, round: int) -> int:
        """Return the length of the prefixes that round `round` extends. Rounds count from 0."""
        return sum(self.letters[:round])

    def answered(self, counts: Float64s, variance: Float64s) -> None:
        """Keep the frequent candidate prefixes of a round, given their noisy `counts`.

        `variance` has the variance of the noise in each count.
        """
        begin, letters = 0, self.letters[self._done]
        self._done += 1
        for group, prefixes in enumerate(self.prefixes):
            candidates = extended(prefixes, self.question, letters)
            own = slice(begin, begin + len(candidates))
            begin = own.stop
            if candidates:
                self.prefixes[group] = self._kept(group, candidates, counts[own], variance[own])

    def _kept(
        self, group: int, candidates: Sequence[str], counts: Float64s, variance: Float64s
    ) -> list[str]:
        """Return the frequent candidates of a group that are not complete words.

        Adds frequent complete words to the list `found` of the tree. After the last round, every
        candidate is complete. `counts` and `variance` are those of the candidates.
        """
        last = self._done == self.rounds
        ended = np.array([last or word.endswith(END) for word in candidates])
        deviation = np.sqrt(variance)
        # Uses the smallest deviation: the count of an absent word has the least noise.
        chosen = _frequent(counts[ended], float(deviation.min()), self.question.false_words)
        for i in np.flatnonzero(ended)[chosen]:
            word = candidates[i].removesuffix(END)
            counted = float(counts[i]), float(variance[i])
            self.found.append(Found(group, word, *counted, self._done - 1))
        # Under rr and oue an extra prefix costs little, so the threshold is low.
        level = 1.0 if self._local else math.sqrt(2 * math.log(max(len(candidates), 2)))
        alive = np.flatnonzero(~ended & (counts > level * deviation))
        best = alive[np.argsort(-counts[alive], kind="stable")][: KEPT * self.question.most]
        return [candidates[i] for i in best]


def _frequent(counts: Float64s, deviation: float, false_words: float) -> Bools:
    """Return a mask of the counts that are significantly above the noise of an absent word.

    The noise has the standard deviation `deviation`. By the rule of Benjamini and Hochberg, the
    expected share of absent words among the chosen words is at most `false_words`. Without noise,
    every positive count is chosen.
    """
    if deviation == 0:
        return np.asarray(counts > 0, np.bool_)
    chance = special().ndtr(-counts / deviation)
    limits = false_words * np.arange(1, len(chance) + 1) / len(chance)
    passed = np.flatnonzero(np.sort(chance) <= limits)
    most = np.sort(chance)[passed[-1]] if len(passed) else -1.0
    return np.asarray(chance <= most, np.bool_)

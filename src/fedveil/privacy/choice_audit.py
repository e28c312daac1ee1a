"""A lower bound on epsilon from random choices whose true values an auditor knows.

A choice, such as a bit of randomised response, reports its true value with probability
`chance(eps)` at the epsilon eps. If k of n choices are truthful, the bound refutes every epsilon at
which k or more would be too unlikely (Clopper and Pearson).

The same bound also tests pairs of choices, such as the same bit in two reports. Two independent
choices are both truthful with probability chance(eps)² (`in_pairs`). If a mechanism wrongly uses
one random draw for both, they are truthful together, with probability chance(eps). This is more
often than its claimed epsilon allows, so the number of truthful pairs refutes the claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedveil.base.lazy import special
from fedveil.base.validate import integer, within

#: The smallest and the largest epsilon that a search tries.
_LEAST, _MOST = 1e-9, 700.0


@dataclass(frozen=True)
class Choice:
    """A kind of random choice in a report: `count` choices with the same probabilities.

    Each choice reports its true value or a different one. For example, each bit of a report by
    randomised response is a choice. Every report has `count` choices of this kind, in the same
    order. `claim` is the claimed epsilon of one choice, at delta = 0. `chance(eps)` is the
    probability that a choice with the epsilon `eps` reports the truth. It never falls as eps grows.
    """

    name: str
    claim: float
    chance: Callable[[float], float]
    count: int


@dataclass
class Counted:
    """Counts of random choices: `hits` of `tries` choices reported the truth."""

    hits: int = 0
    tries: int = 0

    def add(self, hits: int, tries: int) -> None:
        self.hits += hits
        self.tries += tries

    def lower_bound(self, chance: Callable[[float], float], *, error: float) -> float:
        """Return a lower bound on the epsilon of one choice, from the counted hits.

        It is 0 if the hits exclude no epsilon. `chance(eps)` is the probability that a choice with
        the epsilon `eps` reports the truth. The result is above the true epsilon with probability
        at most `error`.
        """
        return _largest(chance, self._least_share(self.hits, error))

    def unseen(self, chance: Callable[[float], float], claim: float, *, error: float) -> float:
        """Return the largest true epsilon that a test of `claim` would probably miss.

        Up to it, the expected number of truthful choices is too small to refute the claim. The
        result depends on `tries`, but not on `hits`. It is infinite if the claim could not be
        refuted even if every choice reported the truth. `chance(eps)` is the probability that a
        choice with the epsilon `eps` reports the truth. The test uses a bound that is wrong with
        probability at most `error`.
        """
        low, high = -1, self.tries
        if not self._refutes(high, chance(claim), error):
            return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            if self._refutes(middle, chance(claim), error):
                high = middle
            else:
                low = middle
        return max(claim, _largest(chance, high / self.tries))

    def _refutes(self, hits: int, chance: float, error: float) -> bool:
        return self._least_share(hits, error) > chance

    def _least_share(self, hits: int, error: float) -> float:
        """Return a lower bound on the probability that one choice reports the truth.

        `hits` of all `tries` choices did. The bound is too high with probability at most `error`.
        """
        within("error", error, 0, 1, open_low=True, open_high=True)
        integer("hits", hits, 0, self.tries)
        if not hits:
            return 0.0
        return float(special().betaincinv(hits, self.tries - hits + 1, error))


def in_pairs(chance: Callable[[float], float]) -> Callable[[float], float]:
    """Return the function eps -> Pr[two independent choices are truthful].

    `chance` is the function eps -> Pr[one choice is truthful].
    """
    return lambda eps: chance(eps) ** 2


def told_true(eps: float) -> float:
    return 1 / (1 + math.exp(-eps))


def _largest(chance: Callable[[float], float], share: float) -> float:
    """Return the largest epsilon with `chance(epsilon)` < `share`, rounded down, or 0."""
    low, high = _LEAST, _MOST
    if chance(low) >= share:
        return 0.0
    if chance(high) < share:
        return high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < share else (low, middle)
    return low

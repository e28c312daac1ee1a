"""A lower bound on epsilon from random choices whose truth an auditor knows.

Many mechanisms tell the truth or something else by an independent draw: a bit that is flipped, a
selection that is favoured. An auditor who knows a client's update knows the truth, and counts how
often it is told. Told true with probability `chance(eps)`, k of n such choices refute every
epsilon for which k or more are too unlikely (Clopper and Pearson).

In two releases with draws of their own, both are true with probability chance(eps)². A draw that
is used twice makes both true far more often: it then looks like the draw of a larger epsilon.
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
    """Choices of a report that are alike: `count` of them, each with its place in every report.

    `claim` is the epsilon of one, pure. `chance(eps)` is the probability that it is told true if
    that epsilon were `eps`; it never falls as eps grows.
    """

    name: str
    claim: float
    chance: Callable[[float], float]
    count: int


@dataclass
class Counted:
    """`hits` of `tries` choices were told true."""

    hits: int = 0
    tries: int = 0

    def add(self, hits: int, tries: int) -> None:
        """Count more of them."""
        self.hits += hits
        self.tries += tries

    def lower_bound(self, chance: Callable[[float], float], *, error: float) -> float:
        """Return the largest epsilon that the true choices refute, or 0.

        It is above the epsilon of the choices with probability at most `error`.
        """
        return _largest(chance, self._least_share(self.hits, error))

    def unseen(self, chance: Callable[[float], float], claim: float, *, error: float) -> float:
        """Return an epsilon up to which a false claim is probably not refuted; infinite if any is.

        At a larger one, enough choices are expected to be told true for `claim` to be refuted.
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
        """Return the largest probability that this number of hits refutes."""
        within("error", error, 0, 1, open_low=True, open_high=True)
        integer("hits", hits, 0, self.tries)
        if not hits:
            return 0.0
        return float(special().betaincinv(hits, self.tries - hits + 1, error))


def in_pairs(chance: Callable[[float], float]) -> Callable[[float], float]:
    """Return the probability that two independent choices are both told true."""
    return lambda eps: chance(eps) ** 2


def told_true(eps: float) -> float:
    """Return the chance of randomised response: e^eps / (1 + e^eps)."""
    return 1 / (1 + math.exp(-eps))


def _largest(chance: Callable[[float], float], share: float) -> float:
    """Return the largest epsilon whose chance is below `share`, from below; 0 if none is."""
    low, high = _LEAST, _MOST
    if chance(low) >= share:
        return 0.0
    if chance(high) < share:
        return high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < share else (low, middle)
    return low

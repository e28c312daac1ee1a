"""The joint cost of charges that were chosen one after the other, depending on earlier results.

If all charges are equal, the joint epsilon is that of their exact composition (`compose`).
Otherwise it is the smaller one of two epsilons:

- the sum of the charges' epsilons, at the sum of the charges' own deltas (Rogers, Roth, Ullman and
  Vadhan, 2016). It is used only if this sum of deltas is at most the given delta.
- the epsilon of a Rényi filter (`renyi_filter`), at the given delta. If all charges are Gaussian,
  it is replaced by the epsilon of the one Gaussian loss to which they compose (Smith and Thakurta,
  2022).

Exact composition also holds at the given delta. But earlier results may decide which of the three
epsilons is used. A limit on the joint epsilon therefore holds only at the sum of the three deltas.
It is at most three times the given delta, or twice if the charges have no deltas of their own. If
all charges are Gaussian, the limit holds at the given delta.
"""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal, localcontext

import numpy as np

from fedveil.privacy.client_tally import Kind
from fedveil.privacy.compose import cost
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import Gaussian, PrivacyLoss, as_written, rounded_up
from fedveil.privacy.renyi_filter import ORDERS, epsilon_of, renyi_cost

#: Largest relative rounding error of a sum of squares.
_ROUNDING = 1e-9


class AdaptiveSum:
    """Adaptively chosen charges (pairs of a loss and a number of releases), and their epsilon."""

    def __init__(self) -> None:
        self._kinds: Counter[Kind] = Counter()
        self._pending: Counter[Kind] = Counter()  # not in the sums yet
        self._epsilon = self._delta = Decimal(0)
        self._renyi, self._lost = np.zeros(ORDERS), 0.0
        self._square, self._gaussian = 0.0, True

    @classmethod
    def of(cls, ledger: Ledger) -> AdaptiveSum:
        """Return the sum of the charges of a client that took part in every round of `ledger`."""
        total = cls()
        for kind, times in ledger.kinds_every_round():
            total.add(kind, times)
        return total

    def add(self, kind: Kind, times: int = 1) -> None:
        """Add the charges of `times` reports, each of which costs all the charges in `kind`."""
        self._pending[kind] += times

    @property
    def kinds(self) -> Counter[Kind]:
        """Return the number of reports with each combination of charges (`Kind`)."""
        self.settle()
        return Counter(self._kinds)

    def copy(self) -> AdaptiveSum:
        self.settle()
        other = AdaptiveSum()
        other.__dict__ |= self.__dict__
        other._kinds, other._pending = Counter(self._kinds), Counter()
        return other

    def figure(self, delta: float) -> Figure:
        """Return the joint epsilon at `delta`, or at delta = 0 if that epsilon is not larger."""
        pure, tight = self._at(0.0), self._at(delta)
        return Figure(pure, 0.0) if pure <= tight and pure < math.inf else Figure(tight, delta)

    def _at(self, delta: float) -> float:
        self.settle()
        if len(self._kinds) <= 1:
            charges = [(loss, n * times) for kind, times in self._kinds.items() for loss, n in kind]
            return cost(charges, delta)
        added = rounded_up(self._epsilon) if rounded_up(self._delta) <= delta else math.inf
        if delta == 0.0:
            return added
        if not self._gaussian:
            return min(added, epsilon_of(self._renyi, self._lost, delta))
        one = Gaussian((self._square * (1 + _ROUNDING)) ** -0.5)
        return min(added, cost([(PrivacyLoss.of_release(one), 1)], delta))

    def settle(self) -> None:
        """Add the charges queued by `add` to the sums, so that the next `figure` is fast."""
        for kind, times in self._pending.items():
            for loss, n in kind:
                count = n * times
                with localcontext() as context:
                    context.prec = 800
                    self._epsilon += as_written(loss.epsilon) * count
                    self._delta += as_written(loss.delta) * count
                moments, infinite = renyi_cost(loss)
                self._renyi = self._renyi + count * moments
                self._lost += count * infinite
                if isinstance(loss.release, Gaussian):
                    self._square += count / loss.release.ratio**2
                else:
                    self._gaussian = False
        self._kinds.update(self._pending)
        self._pending = Counter()

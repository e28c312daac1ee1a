"""The distribution of the number v of selected dimensions that are in the top-k set.

SignDS draws a sign, 1 or -1, and selects h of the `dim` dimensions of an update. The `topk`
dimensions with the largest sign · update are the top-k set, and v of the selected ones are in it.
The exponential mechanism with the utility 1[v >= t], for a threshold t, gives a selection J the
probability

    Pr[J] proportional to exp(eps * 1[v >= t]),   so that
    Pr[v] proportional to C(topk, v) C(dim - topk, h - v) exp(eps * 1[v >= t]).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.entropy import Entropy
from fedveil.mechanisms.exact.real_probabilities import ExactDraw, at_least_zero, exp_bounds

_FLOAT_DIGITS = 60
#: Nearly the largest x for which e^x is a float.
_MOST_EXPONENT = 700.0


class InlierLaw:
    """The exact distribution of v, the number of selected dimensions that are in the top-k set.

    The top-k set has `topk` of `dim` dimensions, and `dim_out` (also called h) dimensions are
    selected. A selection with v >= threshold is e^eps times as likely as one with a smaller v.
    """

    def __init__(self, dim: int, topk: int, dim_out: int, threshold: int, eps: float) -> None:
        self._dim, self._topk, self._h = dim, topk, dim_out
        self._threshold = threshold
        self._eps = eps
        self._least = max(0, dim_out - (dim - topk))
        self._below = sum(w for v, w in self._weights() if v < threshold)
        self._above = sum(w for v, w in self._weights() if v >= threshold)

    def _weights(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of each possible v and the number of selections with v top-k dimensions."""
        others = self._dim - self._topk
        v, left = self._least, self._h - self._least
        weight = math.comb(self._topk, v) * math.comb(others, left)
        while weight:
            yield v, weight
            # This division is exact because the next weight is an integer.
            weight = weight * (self._topk - v) * left // ((v + 1) * (others - left + 1))
            v, left = v + 1, left - 1

    @cached_property
    def sampler(self) -> ExactDraw:
        """Return a sampler of v minus the smallest possible v.

        v is the number of selected dimensions that are in the top-k set.
        """
        return ExactDraw(self._eps, self._floors_at)

    def draw(self, entropy: Entropy) -> int:
        """Draw the number v of selected dimensions that are in the top-k set."""
        return self._least + int(self.sampler.draw(1, entropy)[0])

    def _floors_at(self, e: Fraction, bits: int) -> list[int]:
        floors, below, above = [], 0, 0
        total = self._below * e.denominator + self._above * e.numerator
        for v, weight in self._weights():
            if v < self._threshold:
                below += weight
            else:
                above += weight
            floors.append(((below * e.denominator + above * e.numerator) << bits) // total)
        return floors[:-1]

    def pmf(self) -> Float64s:
        """Return Pr[v of the h selected dimensions are in the top-k set], for v = 0..h."""
        e, _ = exp_bounds(self._eps, _FLOAT_DIGITS)
        total = self._below * e.denominator + self._above * e.numerator
        out = np.zeros(self._h + 1)
        for v, weight in self._weights():
            out[v] = weight * (e.numerator if v >= self._threshold else e.denominator) / total
        return out

    def log_probability(self, v: int) -> float:
        """Return ln Pr[J] of a single selection J that has v dimensions in the top-k set."""
        total = np.logaddexp(_log(self._below), _log(self._above) + self._eps)
        return (self._eps if v >= self._threshold else 0.0) - float(total)

    def chance_of_favoured(self, eps: float) -> float:
        """Return the probability that v reaches the threshold, if `eps` replaces the law's epsilon.

        v is the number of selected dimensions that are in the top-k set.
        """
        if not self._below:
            return 1.0
        behind = _log(self._below) - _log(self._above) - eps
        return 1 / (1 + math.exp(min(behind, _MOST_EXPONENT)))

    def expected_ratio(self) -> float:
        """Return the expected share of selected dimensions that are in the top-k set."""
        e, _ = exp_bounds(self._eps, _FLOAT_DIGITS)
        below, above = self._moments(Fraction(0))
        total = self._below * e.denominator + self._above * e.numerator
        return float((below * e.denominator + above * e.numerator) / (total * self._h))

    def mean_reaches(self, x: Fraction) -> bool:
        """Return True if the mean number of selected dimensions in the top-k set is at least x."""
        below, above = self._moments(x)
        return at_least_zero(int(below * x.denominator), int(above * x.denominator), self._eps)

    def _moments(self, x: Fraction) -> tuple[Fraction, Fraction]:
        below = sum(v * w for v, w in self._weights() if v < self._threshold)
        above = sum(v * w for v, w in self._weights() if v >= self._threshold)
        return below - x * self._below, above - x * self._above


class ThresholdSearch:
    """Finds the best threshold for h selected dimensions, and the largest h for a wanted share.

    The top-k set has `topk` of `dim` dimensions. v is the number of selected dimensions in this
    set. Selections with v >= threshold are e^eps times as likely as those with a smaller v. The
    best threshold maximises the mean of v, E[v]. The share is E[v] / h.
    """

    def __init__(self, dim: int, topk: int, eps: float) -> None:
        self._dim, self._topk, self._eps = dim, topk, eps
        self._tabulate(64)

    def best(self, dim_out: int) -> int:
        """Return the best threshold for a selection of `dim_out` dimensions.

        The best threshold is the number in 1..dim_out that makes the mean number of selected
        dimensions in the top-k set largest. If several numbers do, the result is the smallest of
        them.
        """
        # The maximum m of E[v] is reached if exactly the v above m are favoured: if favouring v = w
        # raises E[v], then w is above the result. So the best threshold is floor(m) + 1. Two
        # thresholds are equally good, and m is an integer, only if v is certain. Otherwise E[v]
        # depends on e^eps, which is transcendental.
        mean, slack = self._best_mean(dim_out)
        if slack == 0:  # v is certain
            return 1
        near = round(mean)
        if abs(mean - near) > slack:
            return math.floor(mean) + 1
        above = near < dim_out and self._law(dim_out, near + 1).mean_reaches(Fraction(near))
        return near + above

    def reaches(self, dim_out: int, ratio: float) -> bool:
        """Return True if the best threshold for v gives a mean share of at least `ratio`.

        `dim_out` dimensions are selected. v is the number of them that are in the top-k set, and
        the share is v / `dim_out`. The mean is over the random selection, whose distribution
        depends on the threshold (see the class).
        """
        mean, slack = self._best_mean(dim_out)
        goal = ratio * dim_out
        if abs(mean - goal) > slack:
            return mean > goal
        return self._law(dim_out, self.best(dim_out)).mean_reaches(Fraction(ratio) * dim_out)

    def largest(self, ratio: float) -> int:
        """Return the largest number of selected dimensions whose mean share is at least `ratio`.

        The share is the part of the selected dimensions that is in the top-k set. For each number
        of dimensions, the threshold is the one that makes the mean share largest. Returns 0 if the
        mean share is below `ratio` for every number of dimensions.
        """
        # The best share never rises with h, so the search doubles h and then bisects. Proof: drop a
        # random dimension from the best selection of h + 1. The share stays, and the probability of
        # a selection becomes a mean of two of its values. Such a selection of h favours no v by
        # more than e^eps, and of all of those the best threshold has the largest E[v].
        if self._topk >= Fraction(ratio) * self._dim:
            return self._dim  # even all dimensions contain that many of the top-k set
        good, bad = 0, 1
        while bad < self._dim and self.reaches(bad, ratio):
            good, bad = bad, min(2 * bad, self._dim)
        while bad - good > 1:
            middle = (good + bad) // 2
            if self.reaches(middle, ratio):
                good = middle
            else:
                bad = middle
        return good

    def _law(self, dim_out: int, threshold: int) -> InlierLaw:
        return InlierLaw(self._dim, self._topk, dim_out, threshold, self._eps)

    def _best_mean(self, h: int) -> tuple[float, float]:
        """Return the largest mean of v that any threshold gives, and a bound on its error.

        v is the number of selected dimensions that are in the top-k set, if `h` dimensions are
        selected. The second result bounds the numerical error of the first.
        """
        # E[v] is computed in O(h) for all thresholds that separate the possible v, by sums from
        # both ends in log space. All other thresholds give a smaller E[v].
        if h >= len(self._log_v):
            self._tabulate(2 * h)
        least, most = max(0, h - (self._dim - self._topk)), min(h, self._topk)
        if least == most:
            return float(least), 0.0
        v = np.arange(least, most + 1)
        weights = self._log_inside[v] + self._log_outside[h - v]
        moments = weights + self._log_v[v]
        size = np.abs(weights).max() + self._log_inside[v].max() + self._eps + 1
        add = np.logaddexp.accumulate
        total = np.logaddexp(add(weights)[:-1], self._eps + add(weights[::-1])[-2::-1])
        moment = np.logaddexp(add(moments)[:-1], self._eps + add(moments[::-1])[-2::-1])
        # Each of about 4h roundings moves a logarithm by at most half a unit in the last place.
        slack = 8 * h * np.finfo(float).eps * float(size) * most
        return float(np.exp(moment - total).max()), slack

    def _tabulate(self, count: int) -> None:
        self._log_inside = _log_binomials(self._topk, count)
        self._log_outside = _log_binomials(self._dim - self._topk, count)
        self._log_v = np.concatenate([[-np.inf], np.log(np.arange(1, count))])


def _log(whole: int) -> float:
    return math.log(whole) if whole else -math.inf


def _log_binomials(n: int, count: int) -> Float64s:
    v = np.arange(1.0, count)
    with np.errstate(divide="ignore"):
        return np.concatenate([[0.0], np.cumsum(np.log(np.maximum(n - v + 1, 0)) - np.log(v))])

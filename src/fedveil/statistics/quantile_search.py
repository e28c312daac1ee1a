"""Quantiles under rr and oue: a search in which each client answers one yes-or-no question.

The quantile q, with q between 0 and 1, is the number with a share q of the values below it. It is
searched among the edges of a grid. Each client says whether its value is below one of the edges.
If its row is excluded (another group, a missing value), its answer is yes with probability q, so
that the row does not shift the result. Each answer is sent by randomised response with the whole
epsilon. The estimated share of yes, minus q, is positive if the edge is above the quantile, and
negative if it is below.

Each round asks different clients about one edge: the median of the quantile's distribution, given
all answers so far (a noisy binary search; Burnashev and Zigangirov, 1974).
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from fedveil.base.array_types import Bools, Float64s
from fedveil.base.lazy import special
from fedveil.statistics.answers import Estimate

#: An edge is asked again if |Pr[quantile below it] - 1/2| is smaller than this.
_AGAIN = 0.35
#: A line is fitted to the answers (share of yes, minus q) of at most `_LINE` · min(q, 1 - q) in
#: magnitude. It is used if its slope is more than `_RISES` standard deviations above 0.
_LINE, _RISES = 0.3, 2.0


class Search:
    """Searches for the quantile `q` among increasing `edges`, and stores the clients' answers."""

    def __init__(self, edges: Float64s, q: float) -> None:
        self.edges, self.q = edges, q
        #: For each asked edge: Σ answer / v, Σ 1 / v and Σ noise / v². An answer is the share of
        #: yes, minus q. Its variance is v, and noise is the part of v that the protection adds.
        self._answers: dict[int, Float64s] = defaultdict(lambda: np.zeros(3))

    @property
    def rounds(self) -> int:
        """The number of rounds of the search: twice as many as a binary search without noise."""
        return 2 * math.ceil(math.log2(len(self.edges) - 1))

    def next(self) -> int:
        """Return the index of the edge to ask about next, which is never the first or the last."""
        weights = np.zeros(len(self.edges) - 1)
        for edge, (total, precision, _) in self._answers.items():
            score = total / math.sqrt(precision)
            # The log probabilities that the quantile is below the edge, and above it.
            weights[:edge] += float(special().log_ndtr(score))
            weights[edge:] += float(special().log_ndtr(-score))
        chances = np.cumsum(np.exp(weights - weights.max()))
        off = np.abs(chances[:-1] / chances[-1] - 0.5)
        known = np.array(sorted(self._answers), np.int64)
        if len(known) and off[known - 1].min() < _AGAIN:
            return int(known[off[known - 1].argmin()])
        return 1 + int(off.argmin())

    def answered(self, edge: int, share: float, noise: float, clients: int) -> None:
        variance = noise + self.q * (1 - self.q) / clients
        self._answers[edge] += [(share - self.q) / variance, 1 / variance, noise / variance**2]

    def estimate(self, z: float, label: dict[str, str]) -> Estimate:
        """Return the estimated quantile with its interval. `label` says what is estimated.

        The answer at an edge is the share of clients that say that their value is below the edge,
        minus `q`. It is significant if it is more than `z` standard deviations from zero. The
        estimate is the zero of a line through the answers near the quantile (see `_line`). Without
        such a line, it is the zero of the increasing function nearest to all answers.

        The interval starts at the highest asked edge up to which all answers are significantly
        negative, or else at the first edge. It ends at the lowest asked edge from which on all
        answers are significantly positive, or else at the last edge.
        """
        asked = sorted(self._answers)
        totals, precisions, noises = np.array([self._answers[edge] for edge in asked]).T
        scores = totals / np.sqrt(precisions)
        low = high = 0
        while low < len(asked) and scores[low] < -z:
            low += 1
        while high < len(asked) and scores[-1 - high] > z:
            high += 1
        places = [0, *asked, len(self.edges) - 1]
        ends = float(self.edges[places[low]]), float(self.edges[places[-1 - high]])
        first, last = min(ends), max(ends)
        risen = np.array(_rising(totals / precisions, precisions))
        near = np.abs(risen) <= _LINE * min(self.q, 1 - self.q)
        value = _line(self.edges[asked], totals, precisions, near)
        if value is None:
            rising = np.array([-self.q, *risen, 1 - self.q])
            value = float(np.interp(0.0, *_strict(rising, self.edges[places])))
        spread, part = (last - first) / (2 * z), float(noises.sum() / precisions.sum())
        return Estimate(
            label={**label, "quantile": f"{self.q:.15g}"},
            value=min(max(value, first), last),
            low=first,
            high=last,
            noise=spread * math.sqrt(part),
            sampling=spread * math.sqrt(max(0.0, 1 - part)),
        )


def _line(edges: Float64s, totals: Float64s, precisions: Float64s, near: Bools) -> float | None:
    """Return the zero of a line fitted to the answers that the mask `near` selects.

    The answer at edges[i] is totals[i] / precisions[i], and its weight in the least-squares fit is
    precisions[i]. Returns None if fewer than three answers are selected, or if the line does not
    clearly increase.
    """
    weights, places = precisions[near], edges[near]
    if len(places) < 3:
        return None
    middle, height = np.average(places, weights=weights), totals[near].sum() / weights.sum()
    square = float(weights @ (places - middle) ** 2)
    slope = float(totals[near] @ (places - middle)) / square
    return float(middle - height / slope) if slope * math.sqrt(square) > _RISES else None


def _rising(values: Float64s, weights: Float64s) -> list[float]:
    """Return the nondecreasing sequence with the least weighted squared distance to `values`."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = float(value), float(weight), 1
        while pools and pools[-1][0] >= pool[0]:
            mean, mass, many = pools.pop()
            both = mass + pool[1]
            pool = (mean * mass + pool[0] * pool[1]) / both, both, many + pool[2]
        pools.append(pool)
    return [mean for mean, _, many in pools for _ in range(many)]


def _strict(values: Float64s, places: Float64s) -> tuple[Float64s, Float64s]:
    """Return the distinct values of a nondecreasing function, and the mean argument of each.

    The function has the value `values[i]` at the argument `places[i]`. It may have one value at
    several arguments.
    """
    clipped = np.clip(values, values[0], values[-1])
    distinct, inverse = np.unique(clipped, return_inverse=True)
    return distinct, np.bincount(inverse, places) / np.bincount(inverse)

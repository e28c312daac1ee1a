"""The epsilon of losses that are chosen one after the other, depending on earlier results.

For each order a of a fixed grid, a loss L has the Rényi cost log E[exp((a - 1) L)] / (a - 1). Costs
of one order add up, even if each loss is chosen adaptively, as long as the sum stays within a fixed
limit (Feldman and Zrnic, Individual Privacy Accounting via a Rényi Filter, 2021). The total loss
exceeds the sum by more than log(1 / delta) / (a - 1) with probability at most delta (Markov). Each
order gets an equal share of delta.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.base.lazy import special
from fedveil.base.validate import within
from fedveil.privacy.loss import Gaussian, PrivacyLoss

#: The orders, less 1: from 1/2 to 128.
_ABOVE_ONE: Float64s = 2.0 ** np.arange(-1.0, 7.5, 0.5)
ORDERS = len(_ABOVE_ONE)
#: Every sum may be this much too small.
_ROUNDING = 1e-9


def epsilon_of(total: Float64s, lost: float, delta: float) -> float:
    """Return the epsilon at `delta` of losses whose Rényi costs sum to `total`.

    `total` has an entry for each order of the fixed grid. `lost` is the sum of all losses'
    probabilities of being infinite. The result is infinite unless `lost` is below `delta`.
    """
    left = within("delta", delta, 0, 1) - lost
    if left <= 0:
        return math.inf
    epsilons = total + (math.log(len(_ABOVE_ONE) / left)) / _ABOVE_ONE
    return float(epsilons.min()) * (1 + _ROUNDING)


@lru_cache(maxsize=1 << 10)
def renyi_cost(loss: PrivacyLoss) -> tuple[Float64s, float]:
    """Return a loss's Rényi cost at each order of the fixed grid, and its Pr[infinite loss]."""
    release = loss.release
    if isinstance(release, Gaussian):
        return (1 + _ABOVE_ONE) / (2 * release.ratio**2), 0.0
    if release is not None:
        found = release.distribution()
        return _moments(found.losses, found.masses), found.infinite
    if math.isinf(loss.epsilon):
        return np.full(len(_ABOVE_ONE), math.inf), 0.0
    # No (epsilon, 0) mechanism loses more than randomized response.
    likely = 1 / (1 + math.exp(-loss.epsilon))
    losses, chances = np.array([loss.epsilon, -loss.epsilon]), np.array([likely, 1 - likely])
    return _moments(losses, chances), loss.delta


def _moments(losses: Float64s, chances: Float64s) -> Float64s:
    some = chances > 0
    exponents = np.outer(_ABOVE_ONE, losses[some])
    moments: Float64s = special().logsumexp(exponents, axis=1, b=chances[some])
    return np.asarray(np.maximum(moments, 0.0) / _ABOVE_ONE, np.float64)

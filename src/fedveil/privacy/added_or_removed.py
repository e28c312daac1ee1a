"""The privacy of a sum with Gaussian noise if one contribution is added or removed, not replaced.

Most papers assume this, and the results serve only for comparison with them. With the clip c,
replacing a contribution moves a sum by at most 2c. Adding or removing one moves it by at most c.
The losses for adding and for removing differ (Mironov, Talwar and Zhang, 2019). The releases are
composed once with each of them, and the larger epsilon counts (Zhu, Dong and Wang, 2022).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.base.lazy import special
from fedveil.privacy.compose import compose
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.privacy.loss_distribution import LossDistribution

Order = Literal["added", "removed"]

_POINTS = 1 << 14
#: The grid ends where an output is this many sigma from its distribution's middle.
_REACH = 8.5
#: Relative error of each part of the curve.
_ERROR = 1e-12


@dataclass(frozen=True)
class OneSided:
    """Gaussian noise on a sum that includes a contribution with probability `rate`.

    The contribution has a norm of at most c, and `ratio` is the noise's standard deviation over c.
    Let N(m) be the normal distribution N(m, ratio²). In units of c, the sum has the distribution Q
    = N(0) without the contribution, and P = (1 - rate) N(0) + rate N(1) with it. The loss is that
    of P against Q for the `order` "removed", and of Q against P for "added".
    """

    ratio: float
    rate: float
    order: Order

    def distribution(self) -> LossDistribution:
        return _distribution(self.ratio, self.rate, self.order)

    def curve(self, epsilons: Float64s) -> Float64s:
        """Return an upper bound on delta at each of `epsilons`, a little above the exact value."""
        # With s = `ratio`, q = `rate` and the output x in units of c, the best event is x > t for
        # "removed" and x < t for "added". At t, (1 - q) + q e^((2t - 1) / 2s²) is e^epsilon for
        # "removed" and e^-epsilon for "added".
        s, q, ndtr = self.ratio, self.rate, special().ndtr
        sign = 1.0 if self.order == "removed" else -1.0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # In logarithms, since e^epsilon overflows if the noise is weak.
            rest = 1 - (1 - q) * np.exp(-sign * epsilons)
            power = sign * epsilons + np.log(np.maximum(rest, 0)) - math.log(q)
            edge = np.where(rest > 0, s * s * power + 0.5, -np.inf)
            without, inside = ndtr(-sign * edge / s), ndtr(-sign * (edge - 1) / s)
            mixed, bare = (1 - q) * without + q * inside, without
            ahead, back = (mixed, bare) if sign > 0 else (bare, mixed)
            back = np.exp(epsilons + np.log(back))
        delta: Float64s = np.clip(ahead - back, 0.0, 1.0) + _ERROR * (ahead + back)
        return np.minimum(delta, 1.0)


def added_or_removed(ratio: float, rate: float, releases: int, delta: float) -> float:
    """Return the epsilon at `delta` of `releases` sums, if one contribution is added or removed.

    The contribution has a norm of at most c, and is in each sum with probability `rate`. The
    noise's standard deviation is `ratio` times 2c.
    """
    if rate == 1:
        return compose([(PrivacyLoss.of_release(Gaussian(2 * ratio)), releases)], delta)
    orders: tuple[Order, Order] = ("added", "removed")
    sides = (OneSided(2 * ratio, rate, order) for order in orders)
    return max(compose([(PrivacyLoss.of_release(side), releases)], delta) for side in sides)


@functools.lru_cache(maxsize=16)
def _distribution(ratio: float, rate: float, order: Order) -> LossDistribution:
    outputs = np.linspace(-_REACH * ratio, 1 + _REACH * ratio, 4001)
    gain = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * outputs - 1) / (2 * ratio**2))
    losses = gain if order == "removed" else -gain
    low, high = float(losses.min()), float(losses.max())
    step = (high - low) / _POINTS
    first, last = math.floor(low / step), math.ceil(high / step)
    curve = OneSided(ratio, rate, order).curve(step * np.arange(first, last + 1.0))
    return LossDistribution.from_curve(curve, step, first)

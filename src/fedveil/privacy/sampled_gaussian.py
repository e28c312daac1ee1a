"""Gaussian noise on the sum of a secretly sampled batch, if one example is replaced.

Each example of a client is taken into a batch independently and secretly, with the same
probability. Each taken example adds a vector of L2 norm at most c to a sum. The vector may depend
on everything public. Noise N(0, sigma²) is added to every coordinate of the sum.
"""

# Data sets that differ in one example have these output distributions, given which of the other
# examples were taken and with their sum as the origin:
#
#     P = (1 - q) N(0) + q N(u)        and        Q = (1 - q) N(0) + q N(v),        |u|, |v| <= c.
#
# By joint convexity, no more is revealed without these conditions.
#
# Theorem. Among all such u and v, opposite ones of norm c lose most: for every e^eps > 0,
# delta(eps) = sup_S P(S) - e^eps Q(S) is largest at u = -v, |u| = c.
#
# Proof. Let e^eps >= 1. In units of sigma and with u as the origin, let z be drawn from N(0, I).
# With w = v - u and w' = -u,
#
#     delta(eps) = q E[(1 - A - B)_+],    A = e^eps exp(<w, z> - |w|²/2),
#                                         B = (e^eps - 1) (1 - q)/q exp(<w', z> - |w'|²/2).
#
# This depends only on r = |w| <= 2c, r' = |w'| <= c and k = <w, w'> <= r r'. Let g be a smooth
# convex function; g(A + B) of the Gaussian pair ln A, ln B has, by the heat equation,
#
#     d/dk E[g] = E[g'' A B] >= 0,
#     d/dr E[g] = E[g'' (r A² + r' A B)] >= 0 along k = r r', likewise d/dr' E[g],
#
# since the variance of ln A is r², twice as fast as its mean falls, and the terms in g' cancel. t
# -> (1 - t)_+ is a limit of such g. So delta is largest where k, r and r' are, and all three are
# largest at u = -v, |u| = c. If e^eps < 1, delta(eps) is 1 - e^eps + e^eps times the curve of (Q,
# P) at -eps, and u and v swap roles. ∎
#
# The theorem also covers a sum of clients' vectors, each of which is in it by a secret draw.
#
# With u = -v, a reflection swaps P and Q, so one distribution covers both orders. By theorem 10 of
# Zhu, Dong and Wang (2022) it also covers the composition of rounds, each of which may be chosen
# after seeing the earlier ones.

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.base.lazy import special
from fedveil.base.quantity import quantity
from fedveil.base.validate import integer, positive, within
from fedveil.errors import InvalidValue
from fedveil.privacy.compose import compose
from fedveil.privacy.loss import Gaussian, Per, PrivacyLoss, Release, exactly
from fedveil.privacy.loss_distribution import LossDistribution

#: The grid has at most this many points, and `_POINTS_PER_DEVIATION` per deviation of the loss.
_MAX_POINTS = 1 << 16
_POINTS_PER_DEVIATION = 256
#: The grid ends this many sigma from the distribution's middle: less than 1e-16 lies beyond.
_REACH = 8.5
#: Largest relative error of a term of the curve, for each unit of its exponent; and that of a few
#: roundings.
_TERM_ERROR, _ROUNDING = 4e-15, 1e-12
#: Limits of a ratio. Beyond them, rounding errors would dominate the curve.
_LEAST_RATIO, _MOST_RATIO = 1e-2, 1e6
#: Relative width of the last interval in the search for the least ratio.
_RATIO_WIDTH = 1e-4


@dataclass(frozen=True)
class SampledGaussian:
    """Gaussian noise on the sum of a batch that takes every example with probability `rate`.

    The loss is for replacing one example. `ratio` is the noise's standard deviation over 2c, where
    c is the largest norm of an example's contribution. At rate 1 the loss is that of
    `Gaussian(ratio)`.

        >>> from fedveil.privacy import PrivacyLoss, SampledGaussian, compose, format_epsilon
        >>> loss = PrivacyLoss.of_release(SampledGaussian(0.5, 0.1), "example")
        >>> format_epsilon(compose([(loss, 100)], delta=1e-5))
        '10.6'
    """

    ratio: float
    rate: float

    def __post_init__(self) -> None:
        within("ratio", self.ratio, _LEAST_RATIO, _MOST_RATIO)
        within("rate", self.rate, 0, 1, open_low=True)

    def distribution(self) -> LossDistribution:
        """Return a privacy-loss distribution that is an upper bound for every pair of inputs."""
        return _distribution(self.ratio, self.rate)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at `epsilon` for one release, close to the true delta."""
        return float(_curve(0.5 / self.ratio, self.rate, np.array([epsilon]))[0])


def sampled_release(ratio: float, rate: float) -> Release:
    """Return the `Release` that describes a sum with Gaussian noise.

    An example is in the sum with probability `rate`. `ratio` is the noise's standard deviation over
    2c, where c is the largest norm of an example's contribution. At rate 1, or if `SampledGaussian`
    cannot compute this ratio, the result is a `Gaussian`, which ignores the sampling and never
    understates the loss.
    """
    if rate == 1 or not _LEAST_RATIO <= ratio <= _MOST_RATIO:
        return Gaussian(ratio)
    return SampledGaussian(ratio, rate)


def sampled_loss(
    epsilon: float, delta: float, ratio: float, rate: float, per: Per = "example"
) -> PrivacyLoss:
    """Return the privacy loss of one example in a noisy sum over a batch sampled at `rate`.

    `epsilon` and `delta` are the guarantee that the noise gives an example without sampling. With q
    = `rate`, the result states the smaller epsilon ln(1 + q (e^epsilon - 1)) and the smaller delta
    q `delta`. `ratio` is the noise's standard deviation over 2c, where c is the largest norm of an
    example's contribution. `per` names the unit of data. If `SampledGaussian` cannot compute this
    ratio, the result is the loss without sampling.
    """
    # Why this holds: let u and v be the example's two possible contributions, of norm at most c,
    # and N(m) the noise around m. At the stated epsilon, the sampled release has q times the delta
    # that N(u) has at `epsilon` against a mixture of N(v) and N(0). Both v and 0 are at most 2c
    # from u, so that delta is at most `delta`.
    release = sampled_release(ratio, rate)
    if isinstance(release, Gaussian):
        return PrivacyLoss(epsilon, delta, per=per, release=release)
    if epsilon < 1:
        amplified = math.log1p(rate * math.expm1(epsilon))
    else:
        amplified = epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))
    stated = amplified * (1 + _ROUNDING), rate * delta * (1 + _ROUNDING)
    return PrivacyLoss(*stated, per=per, release=release)


def least_ratio(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """Return the least noise ratio at which `rounds` rounds together cost at most (epsilon, delta).

    Each round samples its batch at `rate`. The ratio is the noise's standard deviation over 2c,
    where c is the largest norm of an example's contribution. Ratios below 0.01 are not considered.
    The result is too large by at most 0.01%. Raises `InvalidValue` if no ratio up to 10^6 is large
    enough.
    """
    epsilon, delta = positive("epsilon", epsilon), within("delta", delta, 0, 1, open_low=True)
    rate, rounds = within("rate", rate, 0, 1, open_low=True), integer("rounds", rounds, 1)

    def excess(log_ratio: float) -> float:
        loss = PrivacyLoss.of_release(sampled_release(math.exp(log_ratio), rate), "example")
        return compose([(loss, rounds)], delta) / epsilon - 1

    low, high = math.log(_LEAST_RATIO), math.log(_MOST_RATIO)
    if excess(high) > 0:
        raise InvalidValue(
            f"no noise of a ratio up to {_MOST_RATIO:g} brings {quantity(rounds, 'round')} to "
            f"epsilon = {exactly(epsilon)} at delta = {delta:g}"
        )
    while high - low > _RATIO_WIDTH:
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
    return math.exp(high)


@functools.lru_cache(maxsize=64)
def _distribution(ratio: float, rate: float) -> LossDistribution:
    shift = 0.5 / ratio
    outputs = np.linspace(-_REACH, shift + _REACH, 4001)
    losses = _loss(shift, rate, outputs)
    density = (1 - rate) * np.exp(-(outputs**2) / 2) + rate * np.exp(-((outputs - shift) ** 2) / 2)
    deviation = math.sqrt(float((density * losses**2).sum() / density.sum()))
    largest = float(losses[-1])
    wanted = max(deviation / _POINTS_PER_DEVIATION, 2 * largest / _MAX_POINTS)
    high = max(32, math.ceil(largest / wanted))
    step = largest / high
    curve = _curve(shift, rate, step * np.arange(-high, high + 1.0))
    return LossDistribution.from_curve(curve, step, -high)


def _loss(shift: float, rate: float, outputs: Float64s) -> Float64s:
    """Return the loss ln P(x) / Q(x) of each output x, for the worst pair of distributions.

    P is N(`shift`, 1) with probability `rate`, and otherwise N(0, 1). Q is N(-`shift`, 1) with
    probability `rate`, and otherwise N(0, 1). `shift` is the norm of the one contribution that
    differs. `shift` and x are in units of sigma.
    """
    taken = math.log(rate) - shift**2 / 2
    left = math.log1p(-rate) if rate < 1 else -math.inf
    gain: Float64s = np.logaddexp(left, taken + shift * outputs)
    return gain - np.logaddexp(left, taken - shift * outputs)


def _curve(shift: float, rate: float, epsilons: Float64s) -> Float64s:
    """Return an upper bound on delta at each of `epsilons`, rounding errors included.

    `shift` is the norm of a contribution in units of sigma, and `rate` the sampling rate.
    """
    # Let m = shift, x the output along the contribution, q = rate and h = epsilon / 2. The event
    # with the largest difference is x > (h + asinh((1 - q) / q sinh(h) e^(m² / 2))) / m, the point
    # at which the loss is epsilon. An error in that point changes delta only to second order.
    epsilon = np.abs(epsilons)
    half = epsilon / 2
    with np.errstate(divide="ignore"):
        log_odds = np.log1p(-rate) - math.log(rate) if rate < 1 else -math.inf
        log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
    argument = log_odds + log_sinh + shift**2 / 2
    # asinh(e^y) equals y + ln 2 to the last digit where e^y is out of range.
    far = argument > 30
    turn = np.where(far, argument + math.log(2), np.arcsinh(np.exp(np.where(far, 0.0, argument))))
    edge = (half + turn) / shift
    log_ndtr = special().log_ndtr
    ahead, _ = ours = _term(rate, log_ndtr(shift - edge))
    back, _ = theirs = _term(rate, epsilon, log_ndtr(-shift - edge))
    neither, _ = untaken = _term((1 - rate) * -np.expm1(-epsilon), epsilon, log_ndtr(-edge))
    error = ours[1] + theirs[1] + untaken[1]
    delta = np.maximum(ahead - back - neither, 0.0) + error
    # Below 0 the curve follows from the mirrored pair's.
    below = -np.expm1(-epsilon) + np.exp(-epsilon) * delta
    return np.minimum(np.where(epsilons < 0, below * (1 + _ROUNDING), delta), 1.0)


def _term(factor: Float64s | float, *exponents: Float64s) -> tuple[Float64s, Float64s]:
    """Return factor * e^(sum of `exponents`), and a bound on the rounding error of this value."""
    value = factor * np.exp(sum(exponents, np.zeros(1)))
    size = sum((np.abs(exponent) for exponent in exponents), np.ones(1))
    return value, _TERM_ERROR * size * value

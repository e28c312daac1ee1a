"""Composition: the joint cost of many releases.

At delta = 0, pure losses add up. For delta > 0, whole privacy curves are composed. For a loss that
only states (epsilon, delta), the curve is that of the worst mechanism that the statement allows
(Kairouz, Oh and Viswanath, 2015). Every result is an upper bound, floating-point errors included.

Composed curves are valid for losses that were fixed before the first release. If losses were chosen
after seeing earlier outputs, their epsilons and deltas are added instead (`adaptive`), which is a
valid privacy filter (Rogers, Roth, Ullman and Vadhan, 2016).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np

from fedveil.base.lazy import special
from fedveil.base.validate import integer, within
from fedveil.errors import InvalidValue
from fedveil.privacy.gaussian_curve import epsilon_for
from fedveil.privacy.loss import Gaussian, PrivacyLoss, as_written, rounded_up
from fedveil.privacy.loss_distribution import SUM_ERROR, LossDistribution
from fedveil.privacy.loss_sum import BLOCK, TAIL, Part, Tilted, TooSteep, add, repeat

Charge: TypeAlias = tuple[PrivacyLoss, int]

#: More releases of one kind than this are composed only by Rényi divergences.
_MAX_COUNT = 10**12
#: A larger epsilon is that of the Rényi bound, because the squares of the losses could overflow.
_MOST = 1e100
#: A second tilt is tried if errors take more than this share of delta. For a large epsilon the
#: limit is the equivalent share of epsilon.
_DOUBT = 1e-5
#: Below the first and beyond the second distance of two normal distributions, their curve is not
#: computed by differences: rounding would exceed its margin.
_NEAR, _FAR = 2.0**-3, 2.0**20


def compose(charges: Iterable[Charge], delta: float = 0.0, *, adaptive: bool = False) -> float:
    """Return the smallest known epsilon at `delta` of all releases in `charges` together.

    A charge is a loss and its number of releases. If `adaptive` is True, losses may have been
    chosen after seeing earlier outputs. Epsilons and deltas are then only added. The result is
    never above the sum of the epsilons if the deltas sum to at most `delta`. The result is infinite
    if no epsilon is known, for example at delta = 0 with a loss that is not pure. Raises
    `InvalidValue` if privacy curves are composed and a loss claims more than its release gives.

        >>> from fedveil.privacy import PrivacyLoss, compose, format_epsilon
        >>> charges = [(PrivacyLoss(0.1), 1000)]
        >>> compose(charges), format_epsilon(compose(charges, delta=1e-5))
        (100.0, '17.8')
    """
    delta = within("delta", delta, 0, 1, open_high=True)
    total: Counter[PrivacyLoss] = Counter()
    for loss, count in _pairs(charges):
        if integer("count", count, 0):
            total[loss] += count
    return _compose(frozenset(total.items()), delta, adaptive)


def _pairs(charges: Iterable[Charge]) -> Iterator[Charge]:
    if not isinstance(charges, Iterable):
        raise InvalidValue(f"charges = {charges!r} is not a list of pairs (loss, count)")
    for charge in charges:
        pair = isinstance(charge, tuple | list) and len(charge) == 2
        if not pair or not isinstance(charge[0], PrivacyLoss):
            raise InvalidValue(f"charge {charge!r} is not a pair of a PrivacyLoss and a count")
        yield charge


def cost(charges: Sequence[Charge], delta: float, *, adaptive: bool = False) -> float:
    """Return the epsilon at `delta` that a ledger states for all releases in `charges` together.

    A charge is a loss and its number of releases. A single pure release has exactly its stated
    epsilon. Otherwise the result is that of `compose`. If `adaptive` is True, losses may have been
    chosen after seeing earlier outputs.
    """
    if len(charges) == 1 and charges[0][1] == 1 and charges[0][0].pure:
        return charges[0][0].epsilon
    return compose(charges, delta, adaptive=adaptive)


@lru_cache(maxsize=1 << 14)
def _compose(charges: frozenset[Charge], delta: float, adaptive: bool) -> float:
    plain = plain_sum((loss.epsilon, count) for loss, count in charges)
    failing = plain_sum((loss.delta, count) for loss, count in charges)
    added = plain if failing <= delta else math.inf
    unbounded = any(math.isinf(loss.epsilon) and loss.release is None for loss, _ in charges)
    if delta == 0.0 or adaptive or unbounded:
        return added
    groups, survival = _groups((loss.resolved(), count) for loss, count in charges)
    certain = -math.expm1(survival) * (1 + 1e-12)
    if certain >= delta:
        return added
    return min(added, _solve(groups, (delta - certain) / (1 - certain)))


def plain_sum(terms: Iterable[tuple[float, int]]) -> float:
    """Return the exact sum of value * count over `terms`, rounded up to a float.

    Each value is taken as the shortest decimal that identifies it.
    """
    with localcontext() as context:
        context.prec = 800
        return rounded_up(sum((as_written(value) * count for value, count in terms), Decimal(0)))


@dataclass(frozen=True)
class _Pure:
    """`count` releases of which only an epsilon is known, treated as randomised response.

    Randomised response with this epsilon has the worst loss distribution of all such releases. The
    joint loss follows from a binomial distribution.
    """

    epsilon: float
    count: int

    def log_moment(self, order: float) -> float:
        right = -math.log1p(math.exp(-self.epsilon))
        shift = order * self.epsilon
        return self.count * float(np.logaddexp(right + shift, right - self.epsilon - shift))

    def tilted(self, tilt: float) -> list[Part]:
        n, odds = self.count, self.epsilon * (1 + 2 * tilt)
        log_right, log_wrong = -math.log1p(math.exp(-odds)), -odds - math.log1p(math.exp(-odds))
        # Bernstein's inequality for the number of wrong answers, each side at most TAIL.
        mean, x = n * math.exp(log_wrong), -math.log(TAIL)
        reach = x / 3 + math.sqrt(x * x / 9 + 2 * mean * x)
        wrong = np.arange(
            min(n, math.ceil(mean + reach)), max(0, math.floor(mean - reach)) - 1, -1.0
        )
        gammaln = special().gammaln
        ways = gammaln(n + 1.0) - gammaln(wrong + 1) - gammaln(n - wrong + 1)
        weights = np.exp(ways + wrong * log_wrong + (n - wrong) * log_right)
        origin = (n - 2 * float(wrong[0])) * self.epsilon
        return [(Tilted(origin, 2 * self.epsilon, weights, 2 * TAIL), 1)]


@dataclass(frozen=True)
class _Normal:
    """All Gaussian releases together, as one release: `count` is always 1.

    For two neighbouring inputs, they reveal as much as one draw from N(0, 1) for the first input
    and from N(√`square`, 1) for the second.
    """

    square: float
    count: int = 1

    def log_moment(self, order: float) -> float:
        return 0.5 * self.square * order * (order + 1)

    def tilted(self, tilt: float) -> list[Part]:
        distance = math.sqrt(self.square)
        mean = self.square * (0.5 + tilt)
        edges, step = np.linspace(-8.0, 8.0, (1 << 18) + 1, retstep=True)
        # A cell's mass counts as the loss at its upper end.
        weights = np.diff(special().ndtr(edges)) * math.exp(tilt * distance * step)
        origin = mean + distance * float(edges[1])
        return [(Tilted(origin, distance * float(step), weights, 1e-10), 1)]

    def epsilon(self, delta: float) -> float:
        """Return the joint epsilon at `delta`, by theorem 8 of Balle and Wang (2018)."""
        log_ndtr, distance = special().log_ndtr, math.sqrt(self.square)
        bound = _renyi([self], delta)[0]
        if not _NEAR <= distance <= _FAR:
            return min(bound, epsilon_for(1 / distance, delta))

        def log_delta(epsilon: float) -> float:
            ahead = log_ndtr(distance / 2 - epsilon / distance)
            back = epsilon + log_ndtr(-distance / 2 - epsilon / distance)
            return float(ahead + math.log(max(1e-300, -math.expm1(min(0.0, back - ahead)))))

        return _least(log_delta, math.log(delta) - 1e-10, bound)


@dataclass(frozen=True)
class _Repeated:
    """`count` releases with equal loss distributions, conditioned on all losses being finite."""

    release: LossDistribution
    count: int

    def log_moment(self, order: float) -> float:
        return self.count * _log_moment(self.release, order)

    def tilted(self, tilt: float) -> list[Part]:
        return repeat(lambda level: _block(self.release, tilt, level), self.count)


#: The total loss of all releases of one kind, given that it is finite. `count` is the number of
#: releases (1 if they count as one). `log_moment(order)` is log E[e^(order * loss)], with the loss
#: drawn under the true input. `tilted` returns parts whose sum has the tilted distribution.
_Group: TypeAlias = _Pure | _Normal | _Repeated


@lru_cache(maxsize=128)
def _block(release: LossDistribution, tilt: float, level: int) -> Tilted:
    if level:
        return add([(_block(release, tilt, level - 1), BLOCK)], tilt)
    with np.errstate(divide="ignore"):
        finite = np.log(release.masses) - math.log1p(-release.infinite)
    weights = np.exp(finite + tilt * release.losses - _log_moment(release, tilt))
    return Tilted(release.step * release.low, release.step, weights)


def _log_moment(release: LossDistribution, order: float) -> float:
    some = release.masses > 0
    exponents = np.log(release.masses[some]) + order * release.losses[some]
    largest = float(exponents.max())
    total = math.log(float(np.exp(exponents - largest).sum()))
    return largest + total - math.log1p(-release.infinite)


def _groups(charges: Iterable[Charge]) -> tuple[list[_Group], float]:
    """Return the charges' losses in groups that compose together, and ln Pr[no loss is infinite].

    A charge is a loss and the number of its releases. All Gaussian releases form one group.
    Releases with equal loss distributions form a group. Losses that only state (epsilon, delta)
    form one for each epsilon above 0. The groups describe the losses given that all are finite.
    Their order does not depend on the order of `charges`.
    """
    survivals, squares = [], []
    pure: Counter[float] = Counter()
    repeated: Counter[LossDistribution] = Counter()
    for loss, count in charges:
        if isinstance(loss.release, Gaussian):
            squares.append(count / loss.release.ratio / loss.release.ratio)
        elif loss.release is not None:
            release = loss.release.distribution()
            survivals.append(count * _log_survival(release.infinite))
            repeated[release] += count
        else:
            survivals.append(count * _log_survival(loss.delta))
            pure[loss.epsilon] += count
    finite = [release for release in repeated if release.infinite < 1]
    finite.sort(key=lambda r: (r.step, r.low, r.infinite, r.masses.tobytes()))
    groups: list[_Group] = [_Repeated(release, repeated[release]) for release in finite]
    groups += [_Pure(epsilon, pure[epsilon]) for epsilon in sorted(pure) if epsilon > 0]
    return groups + ([_Normal(math.fsum(squares))] if squares else []), math.fsum(survivals)


def _log_survival(infinite: float) -> float:
    return math.log1p(-infinite) if infinite < 1 else -math.inf


def _solve(groups: Sequence[_Group], delta: float) -> float:
    if not groups:
        return 0.0
    square = max((group.square for group in groups if isinstance(group, _Normal)), default=0.0)
    if math.isinf(square):
        return math.inf
    if len(groups) == 1 and isinstance(groups[0], _Normal):
        return groups[0].epsilon(delta)
    epsilon, tilts = _renyi(groups, delta)
    if max(group.count for group in groups) > _MAX_COUNT or square > _FAR**8 or epsilon > _MOST:
        return epsilon
    for tilt in tilts:
        found, doubt = _untilt(groups, delta, *_total(groups, tilt), epsilon)
        epsilon = min(epsilon, found)
        # Near `epsilon`, delta falls by about the factor e^-`tilts[-1]` per unit of epsilon.
        if doubt < _DOUBT * max(1.0, tilts[-1] * epsilon):
            break
    return epsilon


def _untilt(
    groups: Sequence[_Group], delta: float, total: Tilted, tilt: float, bound: float
) -> tuple[float, float]:
    log_mass = math.fsum(group.log_moment(tilt) for group in groups)
    losses, weights = total.losses, total.weights
    # The exponents are differences of numbers as large as these. log n! is below 30 n.
    most = max(group.count for group in groups)
    rounding = 1e-9 + SUM_ERROR * most + 1e-15 * max(abs(log_mass), tilt * bound, 30 * most)

    def log_delta(epsilon: float) -> float:
        start = int(np.searchsorted(losses, epsilon, side="right"))
        above = losses[start:] - epsilon
        tail = float((weights[start:] * np.exp(-tilt * above) * -np.expm1(-above)).sum())
        return log_mass - tilt * epsilon + math.log(tail + total.slack + 1e-300)

    epsilon = _least(log_delta, math.log(delta) - rounding, bound)
    doubt = math.log(total.slack + 1e-300) + log_mass - tilt * epsilon - math.log(delta)
    return epsilon, math.exp(min(0.0, doubt))


def _total(groups: Sequence[_Group], tilt: float) -> tuple[Tilted, float]:
    """Return the tilted distribution of the total loss of all `groups`, and the tilt that was used.

    A distribution is tilted if each mass is multiplied by e^(tilt * loss) and the masses are
    normalised. The tilt is `tilt`, or a smaller one if `tilt` is too steep.
    """
    while True:
        try:
            parts = [part for group in groups for part in group.tilted(tilt)]
            alone = len(parts) == 1 and parts[0][1] == 1
            return parts[0][0] if alone else add(parts, tilt), tilt
        except TooSteep:
            tilt /= 2


def _least(log_delta: Callable[[float], float], wanted: float, bound: float) -> float:
    """Return the least epsilon in [0, bound] with `log_delta(epsilon)` <= `wanted`.

    `log_delta` is a falling function. If no epsilon satisfies the condition, returns `bound`.
    """
    # The search is regula falsi, because the curve is nearly straight. The returned end satisfies
    # the condition.
    low, high = 0.0, bound
    above, below = log_delta(low) - wanted, log_delta(high) - wanted
    if above <= 0:
        return 0.0
    side = 0
    while below < 0 and high - low > 1e-10 * high:
        middle = low + (high - low) * min(max(above / (above - below), 1e-3), 1 - 1e-3)
        value = log_delta(middle) - wanted
        if value > 0:
            low, above, below = middle, value, below / 2 if side > 0 else below
            side = 1
        else:
            high, below, above = middle, value, above / 2 if side < 0 else above
            side = -1
        if not low < (low + high) / 2 < high:
            break
    return high


def _renyi(groups: Sequence[_Group], delta: float) -> tuple[float, list[float]]:
    """Return the least epsilon by the Rényi bound at `delta`, for the losses in `groups`.

    Also returns two tilts to try in `_total`. They move the losses near this epsilon into the
    middle of the distribution, where errors weigh least.
    """
    # The bound (Canonne, Kamath and Steinke, 2020) is, for every t > 0,
    #
    #     log delta <= log E[e^(t * loss)] - t * epsilon + log(t^t / (1 + t)^(1 + t)).
    #
    # The best t would tilt the loss so that epsilon lies in its middle, where errors weigh least.
    # But it grows without limit if the loss has a largest value. So the returned tilts are the
    # least t whose bounds on delta are worse by factors of at most e^8 and e. The first usually
    # suffices, and keeps the distribution narrow where a few large losses would widen it. Only
    # quarter powers of two are tried, so that a run that grows by a round keeps its tilt and the
    # blocks made with it.

    @cache
    def epsilon(quarter: int) -> float:
        t = 2.0 ** (quarter / 4)
        moments = math.fsum(group.log_moment(t) for group in groups)
        room = t * math.log(t) - (1 + t) * math.log1p(t) - math.log(delta)
        return float((moments + room + 1e-14 * (abs(moments) + abs(room))) / t)

    coarse = range(-120, 121, 8)
    middle = min(coarse, key=epsilon)
    best = min(range(middle - 8, middle + 9), key=epsilon)
    worse = {q: 2.0 ** (q / 4) * (epsilon(q) - epsilon(best)) for q in range(best - 40, best + 1)}
    tilts = [2.0 ** (min(q for q in worse if worse[q] <= factor) / 4) for factor in (8.0, 1.0)]
    return max(0.0, epsilon(best)), tilts

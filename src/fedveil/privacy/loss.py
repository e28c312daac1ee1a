"""Privacy losses: the cost of one release, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Literal, Protocol, SupportsFloat, TypeAlias, get_args

import numpy.typing as npt

from fedveil.base.validate import choice, integer, positive, within
from fedveil.errors import InvalidValue
from fedveil.privacy.loss_distribution import SUM_ERROR, LossDistribution

Per = Literal["bit", "parameter", "row", "vector", "example", "update"]
Neighbours = Literal["replace"]

#: From the smallest part of a report to the whole.
_SIZE = {"bit": 0, "parameter": 1, "row": 2, "vector": 2, "example": 2, "update": 3}
#: The relative error allowed to a release's own numbers, and an epsilon that replaces 0.
_EXACT, _LEAST_EPSILON = 1e-9, 2.0**-100


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise whose standard deviation is `ratio` times the sensitivity.

    >>> from fedveil.privacy import Gaussian, PrivacyLoss, compose, format_epsilon
    >>> loss = PrivacyLoss.of_release(Gaussian(1.5), "update")
    >>> format_epsilon(compose([(loss, 7)], delta=1e-6))
    '9.46'
    """

    ratio: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", positive("ratio", self.ratio))


class Described(Protocol):
    """A release with a loss distribution, which is computed only when the release is composed.

    Releases are hashable, and equal if their distributions are.

        >>> from fedveil.privacy import Described, PrivacyLoss, SampledGaussian
        >>> release: Described = SampledGaussian(1.5, 0.2)
        >>> PrivacyLoss.of_release(release, "example").per
        'example'
    """

    def distribution(self) -> LossDistribution:
        """Return a privacy-loss distribution that is an upper bound for every pair of inputs."""


Release: TypeAlias = Gaussian | LossDistribution | Described


@dataclass(frozen=True)
class PrivacyLoss:
    """An (epsilon, delta) statement of differential privacy about one release.

    `per` is the unit of data that may be replaced, such as "update". `neighbours` is always
    "replace": two inputs are neighbours if they differ only in one such unit. For neighbours, and
    every set of outputs S,

        Pr[S | input] <= e^epsilon Pr[S | other input] + delta.

    `epsilon` is infinite if nothing is guaranteed. `epsilon` and `delta` are rounded up from the
    decimals that were given.

    `release` describes the mechanism more precisely, so that many releases compose to a smaller
    total. Raises `InvalidValue` if the statement claims more than its release guarantees. If the
    release's distribution is not computed yet (`Described`), a ledger or `compose` raises the error
    when it computes the distribution. `part` is a loss with a smaller epsilon for a smaller part of
    the input, such as one bit of a parameter's code.

        >>> from fedveil.privacy import PrivacyLoss
        >>> bit = PrivacyLoss(0.5, per="bit")
        >>> PrivacyLoss(1.0, per="parameter", part=bit).pure
        True
    """

    epsilon: float
    delta: float = 0.0
    per: Per = "update"
    neighbours: Neighbours = "replace"
    release: Release | None = None
    part: PrivacyLoss | None = None

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not isinstance(self.epsilon, SupportsFloat):
            raise InvalidValue(f"epsilon = {self.epsilon!r} is not a number")
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise InvalidValue(f"epsilon = {self.epsilon!r} is outside [0, inf]")
        within("delta", self.delta, 0, 1)
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, rounded_up(as_written(getattr(self, name))))
        choice("per", self.per, get_args(Per))
        if self.neighbours not in get_args(Neighbours):
            raise InvalidValue(f"neighbours = {self.neighbours!r} is not 'replace'")
        if isinstance(self.release, Gaussian):
            self._check_gaussian(self.release)
        elif isinstance(self.release, LossDistribution):
            self._check_distribution(self.release)
        if self.part is not None and self.part.size >= self.size:
            raise InvalidValue(f"part is per {self.part.per}, not smaller than per {self.per}")

    def _check_gaussian(self, release: Gaussian) -> None:
        if self.pure:
            raise InvalidValue("delta = 0 contradicts the Gaussian release, which is never pure")
        if self.delta == 1.0 or math.isinf(self.epsilon):
            return
        # Imports scipy: a third of a second.
        from fedveil.privacy.gaussian_curve import analytic_sigma, keeps

        epsilon = max(self.epsilon, _LEAST_EPSILON)
        if keeps(release.ratio, epsilon, self.delta):
            return
        least = analytic_sigma(epsilon, self.delta, 1.0)
        if release.ratio < least * (1 - _EXACT):
            raise InvalidValue(
                f"epsilon = {self.epsilon!r} at delta = {self.delta!r} is more than its release "
                f"promises: that takes Gaussian noise of a ratio of at least "
                f"{format_epsilon(least, 6)}, not {release.ratio!r}"
            )

    def _check_distribution(self, release: LossDistribution) -> None:
        if self.pure:
            above = release.largest > self.epsilon * (1 + _EXACT)
            if above or release.infinite > 0:
                raise InvalidValue(
                    f"epsilon = {self.epsilon!r} is below the release's own largest loss, "
                    f"{math.inf if release.infinite else release.largest!r}"
                )
        # A grid rounds losses up by as much as one step.
        elif release.delta(self.epsilon + 2 * release.step) > self.delta * (1 + 1e-6) + SUM_ERROR:
            raise InvalidValue(
                f"epsilon = {self.epsilon!r} at delta = {self.delta!r} is more than its release "
                f"promises: at that epsilon its delta is "
                f"{format_delta(release.delta(self.epsilon))}"
            )

    @property
    def size(self) -> int:
        """Return the rank of `per`: 0 bit, 1 parameter, 2 row, vector or example, 3 update."""
        return _SIZE[self.per]

    @property
    def pure(self) -> bool:
        """Return True if delta is 0."""
        return self.delta == 0.0

    def resolved(self) -> PrivacyLoss:
        """Return this loss with its loss distribution computed, so that a file can store it."""
        part = None if self.part is None else self.part.resolved()
        release = self.release
        if release is not None and not isinstance(release, Gaussian):
            release = release.distribution()
        return replace(self, release=release, part=part)

    def bare(self) -> PrivacyLoss:
        """Return this loss as a plain (epsilon, delta) statement, without its mechanism."""
        part = None if self.part is None else self.part.bare()
        return replace(self, release=None, part=part)

    @classmethod
    def of_release(cls, release: Release, per: Per = "update") -> PrivacyLoss:
        """Return the privacy loss of `release`, for the replacement of one unit of data `per`.

        The loss has only the release's distribution. Its `epsilon` is infinite.
        """
        return cls(math.inf, 1.0, per, release=release)

    @classmethod
    def from_laws(
        cls,
        laws: npt.ArrayLike,
        *,
        epsilon: float | None = None,
        per: Per = "parameter",
        part: PrivacyLoss | None = None,
    ) -> PrivacyLoss:
        """Return the loss of a mechanism with finitely many inputs and outputs.

        Row i of `laws` is the output distribution of input i. An input is one unit of data, which
        `per` names. `part` is the loss for a part of that unit. `epsilon` is the mechanism's known
        epsilon at delta = 0. If it is None, epsilon is the largest finite loss in `laws`, and delta
        the largest probability of outputs that one input can produce and another cannot.
        Composition uses the distribution of losses in `laws` (`LossDistribution.from_laws`).
        """
        release = LossDistribution.from_laws(laws, epsilon)
        stated = release.largest if epsilon is None else float(epsilon)
        return cls(stated, release.infinite, per, release=release, part=part)


def format_epsilon(epsilon: float, digits: int = 3) -> str:
    """Format `epsilon` with at most `digits` significant digits, rounded up, never down.

    >>> from fedveil.privacy import format_epsilon
    >>> format_epsilon(1.8801), format_epsilon(0.93, 1), format_epsilon(32410)
    ('1.89', '1', '32,500')
    """
    integer("digits", digits, 1)
    if math.isinf(epsilon):
        return "inf"
    text = f"{_ceiling(epsilon, digits):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def exactly(epsilon: float) -> str:
    """Format an epsilon that a user has set, with all its digits.

    >>> from fedveil.privacy.loss import exactly
    >>> exactly(8.0), exactly(0.1234567), exactly(2e6)
    ('8', '0.1234567', '2000000')
    """
    return "inf" if math.isinf(epsilon) else f"{as_written(epsilon).normalize():f}"


def format_delta(delta: float) -> str:
    """Format `delta` with at most six significant digits, rounded up, never down."""
    return f"{float(_ceiling(delta, 6)):g}"


def _ceiling(value: float, digits: int) -> Decimal:
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(as_written(value))


def as_written(value: SupportsFloat) -> Decimal:
    """Return the shortest decimal that identifies a float: 0.1 for the float 0.1."""
    return Decimal(str(value))


def rounded_up(value: Decimal) -> float:
    """Return the smallest float whose shortest decimal is at least `value`."""
    nearest = float(value)
    return nearest if as_written(nearest) >= value else math.nextafter(nearest, math.inf)

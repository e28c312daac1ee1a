"""The curve of Gaussian noise, read in both directions."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.privacy.compose import compose
from fedveil.privacy.gaussian_curve import analytic_sigma, epsilon_for, ratio_for
from fedveil.privacy.loss import Gaussian, PrivacyLoss

_EPSILONS = st.floats(-3, 3).map(lambda e: 10.0**e)
_DELTAS = st.floats(-12, -0.5).map(lambda e: 10.0**e)


@given(_EPSILONS, _DELTAS, st.integers(1, 100_000))
def test_releases_of_the_ratio_cost_the_epsilon_and_no_more(
    epsilon: float, delta: float, releases: int
) -> None:
    ratio = ratio_for(epsilon, delta, releases)
    loss = PrivacyLoss(math.inf, delta, release=Gaussian(ratio))
    assert compose([(loss, releases)], delta) <= epsilon
    less = PrivacyLoss(math.inf, delta, release=Gaussian(ratio * (1 - 1e-7)))
    assert compose([(less, releases)], delta) > epsilon


def test_a_known_ratio() -> None:
    # The design's figure: sigma/sensitivity = 5, 100 rounds, delta = 1e-5 cost 9.99726.
    assert ratio_for(9.99726, 1e-5, 100) == pytest.approx(5, rel=1e-6)


@given(_EPSILONS, _DELTAS)
def test_the_epsilon_of_a_ratio_is_the_one_that_asks_for_it(epsilon: float, delta: float) -> None:
    found = epsilon_for(analytic_sigma(epsilon, delta, 1.0), delta)
    assert epsilon <= found <= epsilon * (1 + 1e-6) + 1e-9
    PrivacyLoss(found, delta, release=Gaussian(analytic_sigma(epsilon, delta, 1.0)))


def _upper_tail(x: Decimal) -> Decimal:
    """Return the probability that a standard normal number is above `x`, to about 60 digits."""
    term = total = x
    for odd in range(3, 1500, 2):
        term *= x * x / odd
        total += term
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640629")
    return Decimal("0.5") - total * (-x * x / 2).exp() / (2 * pi).sqrt()


@pytest.mark.parametrize(
    ("ratio", "delta", "releases"),
    [
        (48515.909478534304, 2.382053929834239e-23, 17),
        (1.5e5, 1e-24, 3),
        (94000.0, 3e-20, 5091),
        (837082.15, 2.6e-25, 295_553),
        (7.5, 1e-9, 2),
    ],
)
def test_much_noise_never_makes_an_epsilon_too_small(
    ratio: float, delta: float, releases: int
) -> None:
    epsilon = compose([(PrivacyLoss.of_release(Gaussian(ratio)), releases)], delta)
    with localcontext() as context:
        context.prec = 130
        mu, eps = Decimal(releases).sqrt() / Decimal(ratio), Decimal(epsilon)
        ahead, back = _upper_tail(eps / mu - mu / 2), _upper_tail(eps / mu + mu / 2)
        assert 1 - Decimal("1e-4") < (ahead - eps.exp() * back) / Decimal(delta) <= 1


@pytest.mark.parametrize(("ratio", "delta"), [(0.01, 1e-5), (0.3, 0.9), (1e6, 1e-5), (1e6, 1e-12)])
def test_the_epsilon_of_far_off_ratios_is_stated(ratio: float, delta: float) -> None:
    epsilon = epsilon_for(ratio, delta)
    loss = PrivacyLoss(epsilon, delta, release=Gaussian(ratio))
    bare = PrivacyLoss(math.inf, delta, release=Gaussian(ratio))
    assert compose([(bare, 1)], delta) <= loss.epsilon * (1 + 1e-9) + 1e-9

"""Adding or removing one contribution, against dp-accounting and its definition."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.integrate import quad
from scipy.stats import norm

from fedveil.privacy.added_or_removed import OneSided, Order, added_or_removed
from fedveil.privacy.compose import compose
from fedveil.privacy.gaussian_curve import epsilon_for
from fedveil.privacy.loss import Gaussian, PrivacyLoss

CASES = [(0.5, 0.01), (2.0, 0.3), (1.0, 0.9)]


@pytest.mark.parametrize(("ratio", "rate"), CASES)
@pytest.mark.parametrize("order", ["added", "removed"])
def test_the_curve_is_the_integral(ratio: float, rate: float, order: Order) -> None:
    def density(x: float) -> float:
        return math.exp(-((x / ratio) ** 2) / 2) / (ratio * math.sqrt(2 * math.pi))

    def excess(x: float, epsilon: float) -> float:
        bare = density(x)
        mixed = (1 - rate) * bare + rate * density(x - 1)
        ahead, back = (mixed, bare) if order == "removed" else (bare, mixed)
        return max(0.0, ahead - math.exp(epsilon) * back)

    for epsilon in (-1.0, -0.005, 0.0, 0.004, 0.2, 1.5):
        pieces = pairwise(np.linspace(-12 * ratio, 1 + 12 * ratio, 200))
        wanted = sum(quad(excess, a, b, args=(epsilon,))[0] for a, b in pieces)
        found = OneSided(ratio, rate, order).curve(np.array([epsilon]))[0]
        assert found == pytest.approx(wanted, rel=1e-6, abs=1e-10)
        assert OneSided(ratio, rate, order).distribution().delta(epsilon) >= found * (1 - 1e-9)


@pytest.mark.parametrize(("ratio", "rate", "releases"), [(0.5, 0.01, 1000), (1.0, 0.1, 40)])
def test_many_releases_agree_with_dp_accounting(ratio: float, rate: float, releases: int) -> None:
    theirs = pld.from_gaussian_mechanism(2 * ratio, sampling_prob=rate)
    wanted = theirs.self_compose(releases).get_epsilon_for_delta(1e-5)
    assert added_or_removed(ratio, rate, releases, 1e-5) == pytest.approx(wanted, rel=1e-3)


def test_a_known_figure() -> None:
    """z = 1, q = 0.01, 1,000 rounds at delta 1e-5: 1.82824."""
    assert added_or_removed(0.5, 0.01, 1000, 1e-5) == pytest.approx(1.82824, rel=1e-3)


def test_without_sampling_it_is_a_gaussian_of_twice_the_ratio() -> None:
    assert added_or_removed(1.0, 1.0, 1, 1e-5) == pytest.approx(epsilon_for(2.0, 1e-5), rel=1e-6)
    replaced = compose([(PrivacyLoss(math.inf, 1.0, release=Gaussian(1.0)), 9)], 1e-5)
    assert added_or_removed(1.0, 1.0, 9, 1e-5) < replaced


def test_noise_that_hides_next_to_nothing_has_a_large_epsilon_and_no_error() -> None:
    """Here e^epsilon is above every float, and nearly no loss is that of one release."""
    always, sampled = (added_or_removed(0.005, rate, 7, 1e-5) for rate in (1.0, 0.4))
    assert 3e4 < sampled < always
    assert sampled > 0.5 * always
    epsilons = np.array([4900.0, 5000.0, 5100.0])
    edge = 1e-4 * (epsilons - math.log(0.4)) + 0.5
    expected = 0.4 * norm.sf((edge - 1) / 0.01) - np.exp(epsilons + norm.logsf(edge / 0.01))
    assert min(expected) > 1e-3
    found = OneSided(0.01, 0.4, "removed").curve(epsilons)
    assert all((expected <= found) & (found <= 1.03 * expected))

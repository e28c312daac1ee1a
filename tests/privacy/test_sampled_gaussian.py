"""The loss of Gaussian noise on a secretly sampled batch, against its definition and others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedveil.errors import InvalidValue
from fedveil.privacy.compose import compose
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.privacy.sampled_gaussian import (
    SampledGaussian,
    least_ratio,
    sampled_loss,
    sampled_release,
)

DELTA = 1e-5
CASES = [(0.5, 0.01), (0.1, 0.3), (3.0, 0.5), (1.0, 0.999), (40.0, 1e-3), (0.5, 1.0)]


def bare(ratio: float, rate: float) -> PrivacyLoss:
    """The release alone: no statement to fall back on."""
    return PrivacyLoss(math.inf, 1.0, per="example", release=SampledGaussian(ratio, rate))


def by_definition(ratio: float, rate: float, epsilon: float) -> float:
    """The integral of (p - e^eps q)_+ over the output, with examples at +1/2 and -1/2."""

    edges, cell = np.linspace(-0.5 - 12 * ratio, 0.5 + 12 * ratio, 200_001, retstep=True)
    x = edges[:-1] + cell / 2
    rest = (1 - rate) * norm.pdf(x, 0, ratio)
    ahead = rest + rate * norm.pdf(x, 0.5, ratio)
    back = rest + rate * norm.pdf(x, -0.5, ratio)
    return float(np.maximum(0, ahead - math.exp(epsilon) * back).sum() * cell)


@pytest.mark.parametrize(("ratio", "rate"), CASES)
@pytest.mark.parametrize("epsilon", [-2.0, -0.01, 0.0, 0.003, 0.1, 1.0, 5.0])
def test_the_curve_is_the_integral(ratio: float, rate: float, epsilon: float) -> None:
    expected = by_definition(ratio, rate, epsilon)
    found = SampledGaussian(ratio, rate).delta(epsilon)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-18)


@pytest.mark.parametrize(("ratio", "rate"), CASES)
def test_the_distribution_is_never_below_the_curve(ratio: float, rate: float) -> None:
    described = SampledGaussian(ratio, rate)
    found = described.distribution()
    for epsilon in np.linspace(-3, 8, 97):
        assert found.delta(epsilon) >= described.delta(epsilon) * (1 - 1e-9) - 1e-15
        assert found.delta(epsilon) <= described.delta(epsilon) * 1.001 + 1e-12


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
def test_no_pair_of_contributions_loses_more_than_opposite_ones(rate: float) -> None:
    """All lengths and angles, on a grid of outputs in the plane that the two contributions span."""
    entropy = np.random.default_rng(7)
    sigma = 0.6
    axis = np.linspace(-5, 5, 401)
    cell = (axis[1] - axis[0]) ** 2
    x, y = np.meshgrid(axis, axis)

    def law(a: float, b: float) -> np.ndarray:
        density = np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * sigma**2))
        return density / (2 * math.pi * sigma**2) * cell

    neither = (1 - rate) * law(0, 0)
    worst = SampledGaussian(sigma / 2, rate)
    nearly = 0
    for _ in range(40):
        lengths = np.minimum(1.0, entropy.random(2) * 1.5)
        angles = entropy.random(2) * 2 * math.pi
        points = lengths * np.cos(angles), lengths * np.sin(angles)
        p, q = (neither + rate * law(points[0][i], points[1][i]) for i in (0, 1))
        for epsilon in (-1.0, -0.1, 0.0, 0.2, 1.0, 2.5):
            found = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
            assert found <= worst.delta(epsilon) + 1e-9
            nearly += found > 0.8 * worst.delta(epsilon)
    assert nearly  # the pairs are not all far from the worst


@pytest.mark.parametrize(
    ("multiplier", "rate", "rounds"), [(1.0, 0.01, 1000), (4.0, 0.5, 50), (0.7, 0.02, 7)]
)
def test_agrees_with_dp_accounting(multiplier: float, rate: float, rounds: int) -> None:
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    theirs = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))
    theirs.compose(event, rounds)
    found = compose([(bare(multiplier / 2, rate), rounds)], DELTA)
    assert found == pytest.approx(theirs.get_epsilon(DELTA), rel=2e-5)


def test_the_known_figure() -> None:
    assert compose([(bare(0.5, 0.01), 1000)], DELTA) == pytest.approx(2.84345, abs=1e-5)


def test_agrees_with_dp_accounting_beside_another_release() -> None:
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    theirs = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(2.0)), 30)
    theirs.compose(dp_event.PoissonSampledDpEvent(1.0, dp_event.GaussianDpEvent(10.0)), 1)
    plain = PrivacyLoss(math.inf, 1.0, release=Gaussian(5.0))
    found = compose([(bare(1.0, 0.2), 30), (plain, 1)], DELTA)
    assert found == pytest.approx(theirs.get_epsilon(DELTA), rel=2e-5)


@pytest.mark.parametrize("rounds", [1, 100])
def test_at_rate_1_it_is_the_plain_gaussian(rounds: int) -> None:
    plain = PrivacyLoss(math.inf, 1.0, release=Gaussian(3.0))
    assert sampled_release(3.0, 1) == Gaussian(3.0)
    found = compose([(bare(3.0, 1.0), rounds)], DELTA)
    exact = compose([(plain, rounds)], DELTA)
    assert exact <= found <= exact * (1 + 1e-5)


@pytest.mark.parametrize(("ratio", "rate"), CASES)
@pytest.mark.parametrize("epsilon", [0.01, 0.7, 1.3, 6.0, 800.0])
def test_a_round_states_no_more_than_it_promises(ratio: float, rate: float, epsilon: float) -> None:
    delta = max(SampledGaussian(ratio, 1.0).delta(epsilon), 1e-300)
    loss = sampled_loss(epsilon, delta, ratio, rate)
    assert loss.epsilon <= epsilon
    assert SampledGaussian(ratio, rate).delta(loss.epsilon) <= loss.delta * (1 + 1e-6) + 1e-15
    assert loss.resolved().epsilon == loss.epsilon  # which checks it against the distribution


def test_a_sampled_round_is_amplified_and_of_the_unit_that_was_asked_for() -> None:
    for epsilon in (0.7, 3.0):
        loss = sampled_loss(epsilon, 0.2, 0.8, 0.25, "row")
        assert loss.epsilon == pytest.approx(math.log(1 + 0.25 * (math.exp(epsilon) - 1)))
        assert (loss.delta, loss.per) == (pytest.approx(0.05), "row")
    assert sampled_loss(0.7, 0.2, 0.8, 0.25).per == "example"
    whole = sampled_loss(0.7, 0.2, 3.0, 1.0, "row")
    assert (whole.epsilon, whole.delta, whole.per) == (0.7, 0.2, "row")


def test_noise_beyond_the_table_has_no_gain() -> None:
    assert sampled_release(1e-3, 0.1) == Gaussian(1e-3)
    assert sampled_release(1e7, 0.1) == Gaussian(1e7)


@pytest.mark.parametrize(("epsilon", "rate", "rounds"), [(1.0, 0.07, 200), (3.0, 1.0, 60)])
def test_the_least_ratio_reaches_its_target(epsilon: float, rate: float, rounds: int) -> None:
    ratio = least_ratio(epsilon, DELTA, rate, rounds)
    loss = sampled_release(ratio, rate), sampled_release(ratio * 0.9997, rate)
    reached, beyond = (
        compose([(PrivacyLoss(math.inf, 1.0, release=release), rounds)], DELTA) for release in loss
    )
    assert reached <= epsilon < beyond


def test_no_ratio_reaches_next_to_nothing() -> None:
    with pytest.raises(InvalidValue, match="no noise of a ratio up to 1e\\+06 brings 100 rounds"):
        least_ratio(1e-9, 1e-12, 1.0, 100)


@pytest.mark.parametrize(("ratio", "rate"), [(0.001, 0.1), (1.0, 0.0), (1.0, 1.5), (2e6, 0.1)])
def test_what_it_may_be(ratio: float, rate: float) -> None:
    with pytest.raises(InvalidValue, match="is outside"):
        SampledGaussian(ratio, rate)

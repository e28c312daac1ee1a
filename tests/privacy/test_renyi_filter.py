"""The Rényi filter: an upper bound of the exact composition, and valid for adaptive choices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedveil.errors import InvalidValue
from fedveil.privacy import Gaussian, LossDistribution, PrivacyLoss, SampledGaussian, compose
from renyi_sum import filtered_epsilon

SAMPLED = PrivacyLoss.of_release(SampledGaussian(0.6, 0.05), "example")
NOISY = PrivacyLoss.of_release(Gaussian(3.0))
PURE = PrivacyLoss(0.3)
STATED = PrivacyLoss(0.4, 1e-8)
MIXTURES = {
    "sampled": [(SAMPLED, 70)],
    "sampled and noisy": [(SAMPLED, 70), (NOISY, 3)],
    "all kinds": [(SAMPLED, 20), (NOISY, 2), (PURE, 5), (STATED, 3)],
}


@pytest.mark.parametrize("name", MIXTURES)
def test_it_is_above_the_exact_composition_and_not_far(name: str) -> None:
    charges = MIXTURES[name]
    found, exact = filtered_epsilon(charges, 1e-6), compose(charges, delta=1e-6)
    assert exact < found < 1.7 * exact


def test_the_cost_of_gaussian_noise_is_its_known_one() -> None:
    # a / (2 r²) for four releases of ratio 6, and log(17 / delta) / (a - 1), at the best order.
    orders = 1 + 2.0 ** np.arange(-1, 7.5, 0.5)
    expected = (4 * orders / (2 * 36) + math.log(len(orders) / 1e-5) / (orders - 1)).min()
    found = filtered_epsilon([(PrivacyLoss.of_release(Gaussian(6.0)), 4)], 1e-5)
    assert found == pytest.approx(expected, rel=1e-6)
    assert found >= expected


def test_chances_of_an_infinite_loss_leave_less_of_delta_for_the_tail() -> None:
    """Three releases that fail with a chance of 3e-6 each leave a tenth of delta."""
    orders = 1 + 2.0 ** np.arange(-1, 7.5, 0.5)
    expected = (4 * orders / (2 * 36) + math.log(len(orders) / 1e-6) / (orders - 1)).min()
    noise = PrivacyLoss.of_release(Gaussian(6.0))
    failing = LossDistribution(0.1, 0, np.array([1 - 3e-6]), infinite=3e-6)
    for fails in (PrivacyLoss(0.0, 3e-6), PrivacyLoss.of_release(failing)):
        found = filtered_epsilon([(noise, 4), (fails, 3)], 1e-5)
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_distribution_costs_what_its_mechanism_costs() -> None:
    flip = LossDistribution.from_laws([[0.75, 0.25], [0.25, 0.75]])
    by_table = filtered_epsilon([(PrivacyLoss.of_release(flip), 4)], 1e-6)
    by_statement = filtered_epsilon([(PrivacyLoss(math.log(3)), 4)], 1e-6)
    assert by_table == pytest.approx(by_statement, rel=1e-3)


def test_what_promises_nothing_is_infinite() -> None:
    assert filtered_epsilon([(PrivacyLoss(math.inf, 1.0), 1)], 1e-6) == math.inf
    assert filtered_epsilon([(PrivacyLoss(0.1, 1e-7), 11)], 1e-6) == math.inf
    assert filtered_epsilon([(PrivacyLoss(0.1, 1e-7), 9)], 1e-6) < 5
    failing = LossDistribution(0.1, 0, np.array([0.3, 0.7 - 1e-7]), infinite=1e-7)
    assert filtered_epsilon([(PrivacyLoss.of_release(failing), 11)], 1e-6) == math.inf
    assert filtered_epsilon([(PrivacyLoss.of_release(failing), 9)], 1e-6) < 5


def test_a_delta_is_a_probability() -> None:
    with pytest.raises(InvalidValue, match=r"delta = 1\.5 is outside"):
        filtered_epsilon([(PrivacyLoss(0.1), 1)], 1.5)


def test_an_analyst_who_chooses_in_view_of_answers_stays_within_the_limit() -> None:
    """The next noise is chosen by the losses so far, to push the total beyond the limit."""
    limit, delta, rng = 2.0, 0.02, np.random.default_rng(6)
    beyond = 0
    for _ in range(4000):
        charges: dict[float, int] = {}
        loss = 0.0
        for _ in range(60):
            # Large steps as long as the loss is low, small ones near the limit.
            ratio = 4.0 if loss < 0.8 * limit else 12.0
            ahead = {**charges, ratio: charges.get(ratio, 0) + 1}
            if bound(ahead, delta) > limit:
                break
            charges = ahead
            loss += rng.normal(1 / (2 * ratio**2), 1 / ratio)
        beyond += loss > limit
    assert beyond <= 4000 * delta + 5 * math.sqrt(4000 * delta)


CACHED: dict[tuple[tuple[float, int], ...], float] = {}


def bound(charges: dict[float, int], delta: float) -> float:
    key = tuple(sorted(charges.items()))
    if key not in CACHED:
        pairs = [(PrivacyLoss.of_release(Gaussian(ratio)), count) for ratio, count in key]
        CACHED[key] = filtered_epsilon(pairs, delta)
    return CACHED[key]

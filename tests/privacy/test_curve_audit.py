"""Lower bounds on epsilon by a mechanism's whole privacy curve: valid, and near the truth."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import stats

from fedveil.errors import InvalidValue
from fedveil.privacy.compose import Charge, compose
from fedveil.privacy.curve_audit import Family, curve_bound, least_advantage
from fedveil.privacy.loss import Gaussian, PrivacyLoss

DELTA = 1e-4


def gaussian(ratio: float, releases: int = 1) -> Family:
    def noise(factor: float) -> list[Charge]:
        return [(PrivacyLoss.of_release(Gaussian(ratio / factor), "update"), releases)]

    return noise


def choices(epsilon: float, count: int) -> Family:
    """Randomised response, `count` times. It is refused above twice its epsilon."""

    def charges(factor: float) -> list[Charge]:
        if factor > 2:
            raise InvalidValue("too costly")
        return [(PrivacyLoss(epsilon * factor), count)]

    return charges


def right_gaussian(ratio: float, releases: int = 1) -> float:
    return float(stats.norm.cdf(np.sqrt(releases) / ratio / 2))


def right_choices(epsilon: float, count: int) -> float:
    """The share of right guesses about an odd number of choices, by their majority."""
    return float(stats.binom.sf(count // 2, count, 1 / (1 + np.exp(-epsilon))))


CASES = [
    (gaussian(1.7), right_gaussian(1.7)),
    (gaussian(6.1, 9), right_gaussian(6.1, 9)),
    (choices(1.1, 1), right_choices(1.1, 1)),
    (choices(0.21, 31), right_choices(0.21, 31)),
]


@pytest.mark.parametrize(("family", "share"), CASES)
def test_many_guesses_of_the_best_attacker_reach_the_true_epsilon(
    family: Family, share: float
) -> None:
    true, guesses = compose(family(1), DELTA), 10**9
    found = curve_bound(round(share * guesses), guesses, family, delta=DELTA, confidence=0.95)
    assert 0.995 * true < found <= true


@pytest.mark.parametrize(("family", "share"), CASES)
def test_a_true_claim_is_refuted_as_rarely_as_stated(family: Family, share: float) -> None:
    """900 attacks at confidence 0.9: the share of refuted ones is not significantly above 0.1."""
    true, guesses = compose(family(1), DELTA), 301
    found = cache(lambda right: curve_bound(right, guesses, family, delta=DELTA, confidence=0.9))
    drawn = np.random.default_rng(4).binomial(guesses, share, 900)
    refuted = sum(found(int(right)) > true for right in drawn)
    assert 0 < refuted <= stats.binom.ppf(1 - 1e-6, 900, 0.1)


def test_half_the_noise_is_found() -> None:
    right = round(right_gaussian(1.7 / 2) * 2000)
    family = gaussian(1.7)
    assert curve_bound(right, 2000, family, delta=DELTA, confidence=0.999) > compose(
        family(1), DELTA
    )
    honest = round(right_gaussian(1.7) * 2000)
    assert curve_bound(honest, 2000, family, delta=DELTA, confidence=0.999) > 0


def test_chance_shows_nothing() -> None:
    assert curve_bound(1000, 2000, gaussian(1.7), delta=DELTA, confidence=0.95) == 0
    assert curve_bound(0, 7, gaussian(1.7), delta=DELTA, confidence=0.95) == 0


def test_the_search_ends_at_the_last_member() -> None:
    """No member above twice the claim exists, though more would be refuted."""
    found = curve_bound(5000, 5000, choices(0.8, 1), delta=0.0, confidence=0.95)
    assert 1.59 < found <= 1.6


def test_the_search_begins_at_the_first_member() -> None:
    """More noise than a mechanism can draw is no reason to find nothing."""

    def from_a_quarter(factor: float) -> list[Charge]:
        if factor < 0.25:
            raise InvalidValue("too much noise")
        return gaussian(1.7)(factor)

    right, guesses = round(right_gaussian(1.7) * 9000), 9000
    found = [
        curve_bound(right, guesses, family, delta=DELTA, confidence=0.95)
        for family in (from_a_quarter, gaussian(1.7))
    ]
    assert found[0] == pytest.approx(found[1], rel=0.01)
    assert found[0] > 0.9 * compose(gaussian(1.7)(1), DELTA)
    slight = round(right_gaussian(1.7 * 20) * 90_000)
    assert curve_bound(slight, 90_000, from_a_quarter, delta=DELTA, confidence=0.95) == 0


def test_the_advantage_is_that_of_clopper_and_pearson() -> None:
    least = stats.binomtest(61, 90, alternative="greater").proportion_ci(0.97).low
    assert least_advantage(61, 90, 0.97) == pytest.approx(2 * least - 1)
    assert least_advantage(40, 90, 0.97) == 0
    with pytest.raises(InvalidValue, match=r"right = 91 is outside \[0, 90\]"):
        least_advantage(91, 90, 0.97)

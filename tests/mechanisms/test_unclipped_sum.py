"""Noise on sums that are not clipped."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.unclipped_sum import GaussianSum
from fedveil.privacy.audit import of_scores
from fedveil.privacy.loss import Gaussian, PrivacyLoss


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_its_noise_is_for_the_moved_distance(rate: float) -> None:
    mechanism = GaussianSum(1.0, 1e-5, 2.0, dimension=100, rate=rate)
    distance = 2 * (2.0 + 10 * mechanism.step)
    release = mechanism.loss.release
    assert release is not None
    assert release.ratio == pytest.approx(mechanism.sigma / distance)  # type: ignore[union-attr]
    if rate == 1:
        assert mechanism.loss == PrivacyLoss(
            1.0, 1e-5, per="example", release=Gaussian(mechanism.sigma / distance)
        )
    else:
        assert mechanism.loss.epsilon == pytest.approx(math.log1p(0.1 * math.expm1(1.0)))
        assert mechanism.loss.delta == pytest.approx(1e-6)


def test_the_noise_is_as_wide_as_it_says() -> None:
    mechanism = GaussianSum(1.0, 1e-3, 1.0, dimension=1 << 14)
    noise = mechanism.privatize(np.zeros(1 << 14), Seeded(0, "noise"))
    assert noise.std() == pytest.approx(mechanism.sigma, rel=0.02)
    assert abs(noise.mean()) < 5 * mechanism.sigma / math.sqrt(1 << 14)


def test_each_part_of_a_long_sum_has_its_own_entries() -> None:
    """Sums are rounded and noised in parts of 65,536 entries. An entry far above the noise shows
    where it is."""
    length = 65_536 + 3
    mechanism = GaussianSum(1.0, 1e-3, 1.0, dimension=length)
    update = np.zeros(length)
    update[[5, length - 2]] = 25 * mechanism.sigma, -50 * mechanism.sigma
    found = mechanism.privatize(update, Seeded(0, "parts"))
    assert np.abs(found - update).max() < 10 * mechanism.sigma


def test_an_empirical_bound_stays_below_the_claim_and_above_it_where_noise_is_for_half() -> None:
    """Sums far longer than the clip. Each entry is one more try of a contribution of one entry."""
    tries = 20_000
    for norm, refuted in ((1.0, False), (0.5, True)):
        loss = GaussianSum(1.5, 1e-3, norm, dimension=1).loss
        noise = GaussianSum(1.5, 1e-3, norm, dimension=tries)
        ahead, back = (
            noise.privatize(np.full(tries, 100.0 + side), Seeded(1, side)) for side in (1, -1)
        )
        assert of_scores(ahead, back, claim=loss).refuted == refuted


def test_likelihoods_are_the_noise_s() -> None:
    mechanism = GaussianSum(1.0, 1e-3, 1.0, dimension=3)
    update = np.array([5.0, 0.0, -2.0])
    here = mechanism.log_likelihood(update, update)
    away = mechanism.log_likelihood(update + np.array([mechanism.sigma, 0, 0]), update)
    assert here - away == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("eps", [1e-9, 1e9])
def test_noise_out_of_range(eps: float) -> None:
    with pytest.raises(InvalidValue, match=r"need noise of sigma = .* which is outside"):
        GaussianSum(eps, 1e-9, 1.0, dimension=100)


@pytest.mark.parametrize("length", [0, 2, 4])
def test_a_sum_of_another_length_is_refused(length: int) -> None:
    """Each entry's rounding moves the sum, and the noise is made for `dimension` of them."""
    mechanism = GaussianSum(1.0, 1e-3, 1.0, dimension=3)
    for release in (mechanism.privatize, mechanism.multiples):
        with pytest.raises(InvalidValue, match=f"update has {length} entries, but dimension is 3"):
            release(np.zeros(length), Seeded(0))

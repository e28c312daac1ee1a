"""Central noise: the norm of what is added up, the noise on the sum, and attempts to break it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedveil.entropy import Entropy, Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.central_noise import CentralNoise, CentralSum
from fedveil.mechanisms.distributed_gaussian import DistributedGaussian
from fedveil.mechanisms.gaussian import GaussianMechanism, analytic_sigma
from fedveil.privacy import audit
from fedveil.privacy.loss import Gaussian

#: Steps of the fixed-point numbers of secure aggregation; none of them is a power of two.
STEPS = [8.0 / (2**19 - 1), 1.0 / (2**15 - 1), 0.3 / (2**23 - 1)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("clip", [0.3, 0.25, 0.1 + 0.2])
def test_no_clipped_vector_is_longer_than_the_norm_in_exact_arithmetic(
    step: float, clip: float
) -> None:
    draw = Seeded(5, "vectors").generator()
    made = CentralNoise(1.0, 1e-5, clip, step, 7)
    limit = (Fraction(clip) / Fraction(step)) ** 2
    for scale in (1e-30, 1e-3, 0.9, 1.0, 1.1, 1e3, 1e30, 1e38):
        for _ in range(20):
            direction = draw.normal(size=7)
            vector = (scale * clip * direction / np.linalg.norm(direction)).astype(np.float32)
            numbers = made.clipped(vector)
            assert sum(int(n) ** 2 for n in numbers) <= limit
            if scale >= 1.1:  # and it is as long as it may be, but for a step an entry
                assert math.sqrt(sum(int(n) ** 2 for n in numbers)) > math.sqrt(limit) - 3
            elif scale <= 0.9:
                assert np.abs(numbers * step - vector).max() <= step * (1 + 1e-9)
    alone = np.zeros(7, np.float32)
    alone[3] = -1e9
    assert abs(int(made.clipped(alone)[3])) <= Fraction(clip) / Fraction(step)


@pytest.mark.parametrize("vector", [np.full(7, np.nan), np.full(7, np.inf)])
def test_what_is_not_finite_is_refused(vector: np.ndarray) -> None:
    with pytest.raises(InvalidValue):
        CentralNoise(1.0, 1e-5, 0.3, STEPS[0], 7).clipped(vector)


@pytest.mark.parametrize("step", STEPS)
def test_the_noise_is_that_of_twice_the_norm_however_many_vectors_there_are(step: float) -> None:
    eps, delta, clip = 1.0, 1e-5, 0.25
    made = CentralNoise(eps, delta, clip, step, 100)
    assert made.sigma == analytic_sigma(eps, delta, 2 * clip)
    assert (made.loss.epsilon, made.loss.delta, made.loss.per) == (eps, delta, "update")
    assert made.loss.release == Gaussian(made.sigma / (2 * clip))
    wanted = Fraction(made.sigma) ** 2 / Fraction(step) ** 2
    assert (
        wanted * (1 + Fraction(1, 2**30)) <= made._noise.variance <= wanted * Fraction(10001, 10**4)
    )
    total = np.arange(20_000, dtype=np.int64)
    made.add_to(total, Seeded(3, "noise"))
    square = float(np.sum(((total - np.arange(20_000)) * step / made.sigma) ** 2))
    assert 1e-9 < stats.chi2.cdf(square, 20_000) < 1 - 1e-9


def test_a_promised_distance_replaces_twice_the_norm() -> None:
    eps, delta, clip, apart = 1.3, 1e-5, 0.25, 0.3
    made = CentralNoise(eps, delta, clip, STEPS[0], 7, apart)
    assert made.sigma == analytic_sigma(eps, delta, apart)
    assert made.loss.release == Gaussian(made.sigma / apart)
    assert made.limit == math.floor((Fraction(clip) / Fraction(STEPS[0])) ** 2)
    for ratio in (2.0, 100.0):
        of_ratio = CentralNoise.of_ratio(ratio, delta, clip, 7, apart)
        assert of_ratio.sigma == ratio * apart
        # The vectors' maker rounds them, within 7 entries of a step each.
        assert math.sqrt(7) * of_ratio.step < 0.01 * apart
    shares = DistributedGaussian(
        clip, 2.0, shares=3, clients=3, dimension=7, entry_bits=16, apart=apart
    )
    reach = math.sqrt(3 * shares.share_variance) * shares.step
    assert 2.0 * apart < reach < 2.0 * apart * 1.001
    assert 2.0 <= shares.ratio(3) < 2.001
    for wrong in (0.0, 0.51):
        with pytest.raises(InvalidValue, match="apart"):
            CentralNoise(eps, delta, clip, STEPS[0], 7, wrong)


def test_a_sum_of_contributions_is_not_clipped_and_its_noise_covers_one_of_them() -> None:
    made = CentralSum(1.7, 1e-5, 0.5, 5)
    assert made.loss.release == Gaussian(1.7)
    assert made.loss.per == "example"
    assert made.sigma == 2 * 0.5 * 1.7
    long = np.array([900.0, -3.0, 0.0, 1e9, 1.0], np.float32)
    steps = made.clipped(long)
    assert steps.tolist() == [900 / made.step, -3 / made.step, 0, 1 << 24, 1 / made.step]
    assert made.within([steps])
    total = np.zeros(20_000, np.int64)
    made.add_to(total, Seeded(3, "noise"))
    square = float(np.sum((total * made.step / made.sigma) ** 2))
    assert 1e-9 < stats.chi2.cdf(square, 20_000) < 1 - 1e-9
    with pytest.raises(InvalidValue, match="a larger epsilon, or fewer entries"):
        CentralSum(1e3, 1e-5, 0.5, 1 << 20)


def in_a_sum(made: CentralNoise, noise: int) -> object:
    """The sum of three vectors of which one is tried, noised as often as said."""

    def release(vector: np.ndarray, entropy: Entropy) -> np.ndarray:
        others = [made.clipped(np.array([0.1, 0.2])), made.clipped(np.array([-5.0, 3.0]))]
        total = others[0] + others[1] + made.clipped(vector)
        for _ in range(noise):
            made.add_to(total, entropy)
        return total - others[0] - others[1]

    return release


def test_an_attacker_who_knows_all_others_does_not_refute_it() -> None:
    made = CentralNoise(1.0, 1e-3, 1.0, STEPS[0], 2)
    far = np.array([5.0, 0.0])
    played = audit.run(
        in_a_sum(made, 1), far, -far, claim=made.loss, trials=4000, entropy=Seeded(1, "audit")
    )
    assert not played.refuted
    bare = audit.run(
        in_a_sum(made, 0), far, -far, claim=made.loss, trials=1000, entropy=Seeded(1, "audit")
    )
    assert bare.refuted


def test_a_grid_that_is_too_coarse_or_too_fine_for_it_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"is 0\.635 steps .* over 10000 entries: at least 16 "):
        CentralNoise(1.0, 1e-5, 0.5, 1 / 127, 10_000)
    with pytest.raises(
        InvalidValue, match=r"eps = 0\.01 needs noise of .* steps .* at most 1\.34e"
    ):
        CentralNoise(0.01, 1e-9, 1.0, 1 / (2**23 - 1), 10)


def test_a_long_vector_is_measured_whole() -> None:
    """The norm is summed in parts: entries of every part count, not those of the last alone."""
    length = 2 * 65_536 + 3
    made = CentralNoise(1.0, 1e-5, 0.25, STEPS[1], length)
    half = math.isqrt(made.limit // 2) + 1
    for places in ((0, 65_536), (5, length - 1), (65_535, 2 * 65_536)):
        vector = np.zeros(length, np.int64)
        vector[places[0]] = half
        assert made.within([vector])
        vector[places[1]] = -half
        assert not made.within([vector])


def test_each_part_of_a_long_vector_has_its_own_entries() -> None:
    """Vectors are rounded in parts of 65,536 entries."""
    length = 65_536 + 3
    steps = np.arange(length) % 1000 - 500
    steps[-3:] = (7, 0, -9)
    made = CentralNoise(1.0, 1e-5, 0.25, 2.0**-25, length)
    np.testing.assert_array_equal(made.clipped(steps * made.step), steps)
    summed = CentralSum(1.7, 1e-5, 0.5, length)
    np.testing.assert_array_equal(summed.clipped(steps * summed.step), steps)


def test_a_vector_of_doubles_is_rounded_as_doubles_and_the_reach_is_in_steps() -> None:
    """A float32 has 24 bits, and the fixed-point numbers of a sum may have more."""
    made = CentralNoise(30.0, 1e-5, 1.0, 2.0**-25 / 3, 3)
    vector = np.array([0.1, -0.2, 0.6])
    exact = [math.trunc(Fraction(entry) * 3 * 2**25) for entry in vector]
    assert np.abs(made.clipped(vector) - exact).max() <= 1
    assert np.abs(made.clipped(vector.astype(np.float32)) - exact).max() > 1
    assert made.reach == pytest.approx(20 * made.sigma * 3 * 2**25, rel=1e-6)


@pytest.mark.parametrize("eps", [0.01, 30.0])
def test_vectors_that_are_near_each_other_get_less_noise_on_a_finer_grid(eps: float) -> None:
    delta, clip, apart, dimension = 1e-5, 0.25, 0.3, 7
    near, far = (
        GaussianMechanism(eps, delta, clip, apart=apart),
        GaussianMechanism(eps, delta, clip),
    )
    for made, distance in ((near, apart), (far, 2 * clip)):
        assert made.sigma == analytic_sigma(eps, delta, distance)
        assert made.loss.release == Gaussian(made.sigma / distance)
        assert (made.loss.epsilon, made.loss.delta) == (eps, delta)
    assert math.sqrt(dimension) * near.grid(dimension).step < 0.01 * apart
    assert 256 * math.sqrt(dimension) * near.grid(dimension).step <= clip

"""The clip that follows a quantile: its law, its sensitivity, what it costs, where it goes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedveil.entropy import Entropy, Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.central_noise import CentralNoise
from fedveil.mechanisms.distributed_gaussian import DistributedGaussian
from fedveil.mechanisms.hadamard import random_signs
from fedveil.mechanisms.quantile_clip import QuantileClip
from fedveil.privacy import audit
from fedveil.privacy.gaussian_curve import analytic_sigma

FIRST, RATIO, NOISE = 0.3, 4.0, 6.0


def made(first: float = FIRST, ratio: float = RATIO, **options: object) -> QuantileClip:
    known = {"dimension": 6, "clients": 100, "bit_noise": NOISE, **options}
    return QuantileClip(first, ratio, **known)  # type: ignore[arg-type]


def of_norm(norm: float, seed: int = 0) -> np.ndarray:
    row = Seeded(seed, "vector").generator().normal(size=6)
    return np.asarray(norm * row / np.linalg.norm(row), np.float32)


@pytest.mark.parametrize("clip", [FIRST, 3e-5, 2.5])
def test_a_vector_is_in_units_of_the_clip_and_a_bit_says_whether_it_was_shortened(
    clip: float,
) -> None:
    law = made()
    for share in (0.0, 0.2, 0.99, 1.01, 7.0):
        x = of_norm(share * clip)
        joint = law.joint(x, clip)
        wanted = FIRST / clip * x.astype(float) * min(1.0, 1 / share if share else 1.0)
        np.testing.assert_allclose(joint[:-1], wanted, rtol=1e-5, atol=1e-12)
        assert joint[-1] == (law.half if share < 1 else -law.half)
        mean, below = law.parted(joint.astype(float), clip)
        np.testing.assert_allclose(mean, x * min(1.0, 1 / share if share else 1.0), rtol=1e-5)
        assert below == (share < 1)


def test_a_vector_of_the_clips_own_length_was_not_shortened() -> None:
    law = made(dimension=2)
    for clip, fits in ((5.0, 1), (np.nextafter(5.0, 0), -1)):
        assert law.joint(np.array([3, -4], np.float32), float(clip))[-1] == fits * law.half


def test_no_joint_vector_is_longer_than_the_norm_whatever_the_clip() -> None:
    law = made()
    assert law.norm == pytest.approx(math.hypot(FIRST, law.half), rel=1e-15)
    for clip in (FIRST * 2.0**-20, 1e-3, FIRST, 17.0, FIRST * 2.0**20):
        for norm in (0.0, 1e-38, 1e-6, 0.3, 1.0, 1e6, 1e38):
            joint = law.joint(of_norm(norm), clip).astype(float)
            assert np.linalg.norm(joint) <= law.norm * (1 + 1e-6)
            assert np.linalg.norm(joint[:-1]) <= FIRST * (1 + 1e-6)


def test_two_vectors_reach_what_the_noise_is_made_for() -> None:
    law, x = made(), of_norm(1.0)
    one, other = law.joint(0.25 * x, 0.25), law.joint(-2.0 * x, 0.25)
    assert np.linalg.norm(one - other) == pytest.approx(2 * law.norm, rel=1e-5)


@pytest.mark.parametrize("steps", [1.5, 2.0, 16.0, 16.0 + 2.0**-19, 1000.75])
def test_a_rounded_bit_survives_a_rounding_error_of_the_norm(steps: float) -> None:
    law = made()
    step, half, norm = law.half / steps, law.half, law.norm
    law.round_bits(step)
    assert law.norm == norm
    assert half - 1.5 * step <= law.half <= half
    for norm, share in ((0.9, 1.0), (1.1, 0.0)):
        joint = law.joint(of_norm(norm), 1.0).astype(float)
        for shrunk in (1.0, 1 - 2.0**-23):
            bit = math.trunc(joint[-1] / step * shrunk) * step
            assert law.parted(np.append(joint[:-1], bit), 1.0)[1] == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("noise", [4.1, 6.0, 50.0])
def test_the_noise_is_split_between_vectors_and_bits_as_in_the_source(noise: float) -> None:
    """Theorem 1 there is of one that is added: z Δ for vectors of Δ, sigma_b for bits of ½."""
    law = made(bit_noise=noise)
    sigma = RATIO * 2 * law.norm  # of every entry of the sum
    assert sigma / (2 * law.half) == pytest.approx(noise, rel=1e-6)  # of the number of bits
    vectors = sigma / (2 * FIRST)
    assert vectors == pytest.approx((RATIO**-2 - noise**-2) ** -0.5, rel=1e-6)
    z, z_delta = 2 * RATIO, 2 * vectors  # sensitivities of one added are half of one replaced
    assert z_delta == pytest.approx((z**-2 - (2 * noise) ** -2) ** -0.5, rel=1e-6)


def test_left_out_the_bits_noise_is_a_twentieth_and_takes_at_most_a_tenth() -> None:
    many = made(clients=1000, bit_noise=None)
    assert many.bit_noise == 50
    few = made(clients=50, bit_noise=None)
    assert few.bit_noise == pytest.approx(math.sqrt(11) * RATIO)
    assert (few.norm / FIRST) ** 2 == pytest.approx(1.1, rel=1e-6)


@pytest.mark.parametrize("noise", [4.0, 3.0])
def test_bits_with_all_of_the_epsilon_are_refused(noise: float) -> None:
    said = f"clip_bit_noise = {noise:g} is not above the noise multiplier, 4: "
    with pytest.raises(InvalidValue, match=said):
        made(bit_noise=noise)


def test_a_bit_of_less_than_a_step_is_refused() -> None:
    law = made()
    with pytest.raises(InvalidValue, match="too large for a clip bit"):
        law.round_bits(law.half)  # a rounding error would leave nothing


def test_the_next_clip_follows_the_law_and_stays_in_its_room() -> None:
    law = made(quantile=0.3, rate=0.7)
    for share in (0.0, 0.3, 0.55, 1.0):
        assert law.moved(0.2, share) == pytest.approx(0.2 * math.exp(-0.7 * (share - 0.3)))
    assert law.moved(0.2, 40.0) == law.moved(0.2, 1.0)
    assert law.moved(0.2, -40.0) == law.moved(0.2, 0.0)
    low, high = FIRST * 2.0**-20, FIRST * 2.0**20
    assert (law.moved(low, 1.0), law.moved(high, 0.0)) == (low, high) == (low, law.most)
    assert law.check(low) == low
    for clip in (low / 2, high * 2, 0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidValue, match=r"clip = .* is (outside|not finite)"):
            law.joint(of_norm(1.0), clip)


@pytest.mark.parametrize("start", [0.1, 10.0])
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_clip_comes_to_the_quantile_under_its_noise(start: float, quantile: float) -> None:
    draw, clients = Seeded(2, "norms").generator(), 100
    norms = draw.lognormal(0.0, 0.5, clients)
    law = QuantileClip(
        start, RATIO, dimension=1, clients=clients, quantile=quantile, rate=0.5, bit_noise=5.0
    )
    noise = CentralNoise.of_ratio(RATIO, 1e-5, law.norm, law.length)
    clip, seen = start, []
    for number in range(100):
        rows = [noise.clipped(law.joint(np.array([norm], np.float32), clip)) for norm in norms]
        total = np.sum(rows, axis=0)
        noise.add_to(total, Seeded(1, "noise", number))
        _, share = law.parted(total * noise.step / clients, clip)
        clip = law.moved(clip, share)
        seen.append(clip)
    settled = np.exp(np.mean(np.log(seen[50:])))
    assert settled == pytest.approx(float(np.quantile(norms, quantile)), rel=0.15)


def test_the_number_of_bits_has_the_noise_that_is_said() -> None:
    law = made()
    noise = CentralNoise.of_ratio(RATIO, 1e-5, law.norm, law.length)
    told = []
    for number in range(2000):
        total = np.zeros(law.length, np.int64)
        noise.add_to(total, Seeded(3, "noise", number))
        told.append(law.parted(total * noise.step, FIRST)[1] - 0.5)
    square = float(np.sum((np.array(told) / NOISE) ** 2))
    assert 1e-9 < stats.chi2.cdf(square, 2000) < 1 - 1e-9


def released(*, forgets: bool = False, shares: bool = False) -> tuple[Any, Any]:
    """One joint vector with noise that is made for joint vectors, or for the vector alone."""
    ratio = analytic_sigma(1.0, 1e-3, 1.0)
    law = QuantileClip(1.0, ratio, dimension=2, clients=4, bit_noise=1.05 * ratio)
    claim = CentralNoise.of_ratio(ratio, 1e-3, law.norm, law.length).loss
    noised = CentralNoise.of_ratio(
        ratio * (law.first / law.norm if forgets else 1), 1e-3, law.norm, law.length
    )
    split = DistributedGaussian(
        law.norm, ratio, shares=3, clients=3, dimension=law.length, entry_bits=12
    )
    signs, zero = random_signs(split.length, Seeded(1, "signs")), np.zeros(3, np.float32)

    def in_shares(vector: np.ndarray, entropy: Entropy) -> np.ndarray:
        total = split.share(law.joint(vector, 0.5), signs, entropy)
        for _ in range(2):
            total += split.share(zero, signs, entropy)
        return split.mean(total, 1, signs)

    def centrally(vector: np.ndarray, entropy: Entropy) -> np.ndarray:
        return noised.noised(law.joint(vector, 0.5), entropy)

    return (in_shares if shares else centrally), claim


@pytest.mark.parametrize(
    ("options", "refuted"),
    [({}, False), ({"shares": True}, False), ({"forgets": True}, True)],
    ids=["a server's noise", "noise in shares", "noise for the vector alone"],
)
def test_an_attacker_refutes_noise_that_forgets_the_bit(
    options: dict[str, bool], refuted: bool
) -> None:
    """One of the two vectors is as long as the clip, and the other is longer."""
    mechanism, claim = released(**options)
    found = audit.run(
        mechanism, np.array([0.5, 0.0]), np.array([-3.0, 0.0]),
        claim=claim, trials=4000, entropy=Seeded(1, "audit"),
    )  # fmt: skip
    assert found.refuted == refuted, str(found)

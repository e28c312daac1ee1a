"""Noise in shares: norms that are never passed, the law of sums, and attempts to break it."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare, norm

from fedveil.entropy import Entropy, Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms import distributed_gaussian
from fedveil.mechanisms.distributed_gaussian import DistributedGaussian, DistributedSum
from fedveil.mechanisms.exact.discrete_gaussian import DiscreteGaussian
from fedveil.mechanisms.hadamard import random_signs
from fedveil.privacy import audit
from fedveil.privacy.gaussian_curve import epsilon_for, ratio_for
from fedveil.privacy.grid_sensitivity import LARGEST
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.secagg.masking import Ring
from folders import DOCS

ERROR_RATE = 1e-6


def made(ratio: float = 2.0, **changes) -> DistributedGaussian:
    settings = {"shares": 4, "clients": 4, "dimension": 100, **changes}
    return DistributedGaussian(settings.pop("clip", 0.5), ratio, **settings)


def signs_of(noise: DistributedGaussian):
    return random_signs(noise.length, Seeded(9)) if noise.rotation else None


@pytest.mark.parametrize("bits", [4, 5, 8, 16, 24])
@pytest.mark.parametrize("rotation", [True, False])
@pytest.mark.parametrize("dimension", [1, 7, 100, 1000])
def test_no_vector_is_longer_than_the_sensitivity_says(bits, rotation, dimension):
    noise = made(entry_bits=bits, rotation=rotation, dimension=dimension)
    draw, entropy = Seeded(1).generator(), Seeded(2)
    for scale in (0, 1e-30, 0.3, 0.999, 1, 1.001, 50, 1e30):
        for spiky in (False, True):
            vector = draw.normal(size=dimension)
            if spiky:
                vector[1:] = 0
            vector *= scale * noise.clip / np.linalg.norm(vector)
            rounded = noise.rounded(vector.astype(np.float32), signs_of(noise), entropy)
            assert sum(int(z) ** 2 for z in rounded) <= noise.limit


class UpAtFirst(Seeded):
    """Every entry is rounded up the first time, and as the seed has it from then on."""

    first = True

    def fill(self, out) -> None:
        super().fill(out)
        if self.first:
            self.first = False
            out[:] = 0


def test_a_vector_that_rounding_makes_too_long_is_rounded_again():
    noise = made(entry_bits=8, rotation=False, dimension=4096)
    steps = np.repeat([1.5, math.sqrt(8 - 1.5**2)], 2048)
    assert np.linalg.norm(steps) == pytest.approx(noise.radius)
    assert (np.ceil(steps) ** 2).sum() > noise.limit
    rounded = noise.rounded((steps * noise.step).astype(np.float32), None, UpAtFirst(3))
    assert (rounded**2).sum() <= noise.limit
    assert 0.4 < (rounded == np.ceil(steps)).mean() < 0.6


def test_what_is_hardest_to_round_stays_within_too():
    """Halves everywhere: as far from whole numbers as a vector can be, and of full norm."""
    noise = made(entry_bits=4, rotation=False, dimension=1)
    halves = DistributedGaussian(
        1.0, 2.0, shares=4, clients=4, dimension=4096, entry_bits=8, rotation=False
    )
    vector = np.full(4096, 0.5 * halves.step, np.float32) * np.float32(halves.radius / 32)
    squares = [
        int((halves.rounded(vector, None, Seeded(3, i)) ** 2).sum()) for i in range(40)
    ]  # fmt: skip
    assert max(squares) <= halves.limit
    assert noise.limit >= noise.radius**2


def test_the_limit_is_the_formula():
    noise = made(dimension=1000, entry_bits=8)
    radius, n = noise.radius, 1024
    assert radius == pytest.approx(math.sqrt(n) * 2**7 / 8)
    spread = math.sqrt(2 * math.log(2**20)) * (radius + math.sqrt(n) / 2)
    assert noise.limit == math.floor(radius**2 + n / 4 + spread)
    assert noise.step == noise.clip / radius
    tiny = made(dimension=1, rotation=False, entry_bits=4)
    assert tiny.limit == (8 + 1) ** 2


def test_rounding_has_the_right_mean_and_takes_the_two_next_whole_numbers():
    noise = made(dimension=80_000, rotation=False, entry_bits=12)
    vector = np.tile(np.array([0.25, -0.75, 1.5, 3], np.float32), 20_000) * np.float32(noise.step)
    seen = noise.rounded(vector, None, Seeded(5)).reshape(20_000, 4)
    assert {tuple(np.unique(column)) for column in seen.T} == {(0, 1), (-1, 0), (1, 2), (3,)}
    for column, p in zip(seen.T, (0.25, 0.25, 0.5), strict=False):
        ups = int((column == column.max()).sum())
        assert abs(ups - 20_000 * p) < 6 * math.sqrt(20_000 * p * (1 - p))


@pytest.mark.parametrize(("norm_of", "left"), [(0.2, 0.2), (0.5, 0.5), (30.0, 0.5)])
def test_clipping_alone_shortens_a_long_vector_and_leaves_a_short_one(norm_of, left):
    noise = made()
    vector = Seeded(6).generator().normal(size=100)
    vector = (norm_of * vector / np.linalg.norm(vector)).astype(np.float32)
    np.testing.assert_allclose(noise.clipped(vector), vector * (left / norm_of), rtol=1e-6)


def test_a_vector_of_several_parts_is_rotated_with_the_signs_of_each():
    """A client rotates a part at a time, and the server the whole sum."""
    noise = made(dimension=70_001, entry_bits=16)
    assert noise.block <= distributed_gaussian._PART < noise.length // 2
    vector = Seeded(4).generator().normal(size=70_001)
    vector *= 0.9 * noise.clip / np.linalg.norm(vector)
    signs = signs_of(noise)
    back = noise.mean(noise.rounded(vector, signs, Seeded(5)).astype(np.int64), 1, signs)
    assert np.abs(back - vector).max() < 6 * noise.step


def test_a_block_longer_than_a_part_is_rotated_whole(monkeypatch):
    monkeypatch.setattr(distributed_gaussian, "_PART", 1 << 9)
    noise = made(dimension=3000, entry_bits=16)
    assert noise.block > 1 << 9
    vector = Seeded(4).generator().normal(size=3000)
    vector *= 0.9 * noise.clip / np.linalg.norm(vector)
    signs = signs_of(noise)
    back = noise.mean(noise.rounded(vector, signs, Seeded(5)).astype(np.int64), 1, signs)
    assert np.abs(back - vector).max() < 6 * noise.step


def test_a_short_last_part_is_filled_up_with_zeros(monkeypatch):
    """Not with the end of the part before, which would be sent twice."""
    monkeypatch.setattr(distributed_gaussian, "_PART", 1 << 10)
    noise = made(dimension=2100, entry_bits=16)
    assert (noise.block, noise.length) == (1024, 3072)
    vector = np.zeros(2100, np.float32)
    vector[:2048] = 0.01
    rounded = noise.rounded(vector, signs_of(noise), Seeded(5))
    assert rounded[1024:2048].any()
    assert not rounded[2048:].any()


@pytest.mark.parametrize("rotation", [True, False])
def test_a_promised_distance_grows_by_the_rounding_of_both_vectors(rotation):
    noise = made(apart=0.02, rotation=rotation)
    rounded = 0.02 / noise.step + 2 * math.sqrt(noise.length)
    assert rounded <= math.sqrt(noise.square) < 2 * math.sqrt(noise.limit)
    assert noise.square < (1.01 * rounded) ** 2


def test_a_short_vector_is_not_scaled_and_a_long_one_is_to_the_clip():
    noise = made(dimension=64, entry_bits=16)
    short = Seeded(6).generator().normal(size=64).astype(np.float32)
    short *= np.float32(0.3 / np.linalg.norm(short))
    for vector, factor in ((short, 1.0), (10 * short, 0.5 / 3.0)):
        numbers = noise.rounded(vector, signs_of(noise), Seeded(7))
        back = noise.mean(numbers, 1, signs_of(noise))
        assert back == pytest.approx(vector * factor, abs=1e-4)


@pytest.mark.parametrize("bad", [[math.nan] * 100, [math.inf] * 100, [[0.0] * 100]])
def test_what_is_no_finite_vector_is_refused(bad):
    with pytest.raises(InvalidValue):
        made().share(np.array(bad), signs_of(made()), Seeded(0))
    of_examples = DistributedSum(1.0, 1.0, shares=3, clients=4, dimension=np.size(bad))
    with pytest.raises(InvalidValue):
        of_examples.share(np.array(bad), None, Seeded(0))


def law(variance: float, reach: int) -> np.ndarray:
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * variance))
    return weights / weights.sum()


def test_the_noise_of_a_sum_is_discrete_gaussian_to_the_last_digit():
    """Convolved exactly: five shares of the least variance that there is."""
    share, total = law(16, 60), np.ones(1)
    for _ in range(5):
        total = np.convolve(total, share)
    assert np.abs(total - law(80, 300)).max() < 1e-15
    near = np.abs(np.log(total[240:361] / law(80, 300)[240:361])).max()
    assert near < 1e-11


def test_the_law_of_a_sum_of_real_shares():
    noise = made(0.7, dimension=1, rotation=False, entry_bits=4, shares=3, clients=3)
    assert noise.share_variance >= 16
    vector, draws = np.array([0.25], np.float32), 6_000
    totals = np.zeros(draws, np.int64)
    for client in range(3):
        entropy = Seeded(8, client)
        totals += [int(noise.share(vector, None, entropy)[0]) for _ in range(draws)]
    # 0.25 of a clip of 0.5 is 4 of 8 steps: no rounding at random, three times.
    reach = 8 * math.ceil(math.sqrt(3 * noise.share_variance))
    expected = draws * law(3 * noise.share_variance, reach)
    observed = np.bincount(totals - 12 + reach, minlength=2 * reach + 1)
    cells = np.minimum(np.arange(2 * reach + 1) * 24 // (2 * reach + 1), 23)
    wanted, got = np.bincount(cells, expected), np.bincount(cells, observed)
    some = wanted > 5
    rest = [wanted[~some].sum(), got[~some].sum()]
    wanted, got = np.append(wanted[some], rest[0]), np.append(got[some], rest[1])
    assert chisquare(got, wanted / wanted.sum() * draws).pvalue > ERROR_RATE


def test_shares_are_independent_of_the_vector_and_of_each_other():
    noise = made(1.0, dimension=4096, entry_bits=8)
    signs = signs_of(noise)
    vector = np.zeros(4096, np.float32)
    one = noise.share(vector, signs, Seeded(10, 1))
    other = noise.share(vector, signs, Seeded(10, 2))
    scale = math.sqrt(noise.share_variance)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
    for sample in (one, other):
        assert np.std(sample) == pytest.approx(scale, rel=0.06)
        assert abs(norm.cdf(np.mean(sample) / scale * 64) - 0.5) < 0.4999995


def test_the_ratio_is_that_of_the_shares_in_the_sum():
    noise = made(3.0, shares=900, clients=1000)
    assert noise.ratio(900) >= 3.0
    assert noise.ratio(900) < 3.0 * (1 + 1e-3)
    exact = math.sqrt((900 * noise.share_variance - 16) / (1 + 2.0**-30) / noise.limit) / 2
    assert exact * (1 - 1e-15) <= exact
    assert noise.ratio(900) == pytest.approx(exact, rel=1e-14)
    assert noise.ratio(900) <= exact
    assert noise.ratio(1000) == pytest.approx(noise.ratio(900) * math.sqrt(10 / 9), rel=1e-6)


@pytest.mark.parametrize("shares", [1, 5, 1000])
@pytest.mark.parametrize("ratio", [1e-3, 0.5, 40.0])
def test_every_share_is_wide_enough_for_the_proof(shares, ratio):
    noise = made(ratio, shares=shares, clients=shares)
    assert noise.share_variance >= 16
    needed = Fraction(2 * ratio) ** 2 * noise.limit
    assert shares * noise.share_variance >= needed


@pytest.mark.parametrize("rotation", [True, False])
@pytest.mark.parametrize("clients", [2, 60])
def test_an_honest_sum_does_not_wrap_and_one_that_does_is_told(rotation, clients):
    noise = made(0.5, clients=clients, shares=clients, dimension=500, rotation=rotation)
    signs, ring = signs_of(noise), Ring(noise.bits)
    assert 1.25 * noise.reach < 2 ** (noise.bits - 1)
    direction = np.full(500, 1.0, np.float32)

    def total(of: int) -> np.ndarray:
        summed = sum(noise.share(direction, signs, Seeded(11, c)) for c in range(of))
        lanes = ring.elements(summed)
        ring.reduce(lanes)
        return ring.signed(lanes)

    honest = total(clients)
    assert not noise.out_of_reach(honest)
    mean = noise.mean(honest, clients, signs)
    sigma = math.sqrt(noise.share_variance / clients) * noise.step
    wanted = 0.5 / math.sqrt(500)
    assert abs(mean.mean() - wanted) < 6 * sigma / math.sqrt(500) + noise.step
    assert noise.out_of_reach(total(60 * clients))
    edge = np.zeros(noise.length, np.int64)
    for sign in (1, -1):
        for beyond in (0, 1):
            edge[3] = sign * (noise.reach + beyond)
            assert noise.out_of_reach(edge) == (beyond == 1)


@pytest.mark.parametrize("clients", [2, 900])
def test_all_of_a_sum_in_one_block_does_not_wrap(clients):
    """The adversary puts every client's whole norm into the same thousandth of the entries."""
    noise = made(0.05, clients=clients, shares=clients, dimension=90_000, entry_bits=8)
    assert noise.length % noise.block == 0
    assert noise.length < 90_000 + noise.block
    vector = np.zeros(90_000, np.float32)
    vector[:90] = noise.clip / math.sqrt(90)
    alone = noise.rounded(vector, signs_of(noise), Seeded(14)).astype(np.int64)
    assert np.abs(alone).max() >= noise.radius / math.sqrt(noise.block)
    summed = clients * alone
    lanes = Ring(noise.bits).elements(summed)
    Ring(noise.bits).reduce(lanes)
    assert (Ring(noise.bits).signed(lanes) == summed).all()
    assert not noise.out_of_reach(summed)


def test_a_sum_of_equal_updates_of_one_entry_does_not_wrap_without_a_rotation():
    noise = made(0.05, clients=60, shares=60, dimension=9, rotation=False)
    vector = np.zeros(9, np.float32)
    vector[4] = noise.clip
    alone = noise.rounded(vector, None, Seeded(15)).astype(np.int64)
    assert alone.max() >= noise.radius - 1
    assert not noise.out_of_reach(60 * alone)


def test_blocks_are_the_shortest_reports_and_large_cohorts_get_larger_ones():
    few, many = (
        made(0.5, dimension=786_432, clients=n, shares=n, entry_bits=4) for n in (7, 5_000)
    )
    assert few.length == many.length == 786_432
    assert few.block < many.block
    assert few.length * few.bits / 8 < 1.5e6


def test_the_ring_has_room_for_the_noise_of_all_clients_and_not_of_the_fewest_alone():
    """Seven deviations are exceeded less often than once in 2^38 entries."""
    plain = made(ratio=60.0, shares=2, clients=50, rotation=False)
    summed = DistributedSum(0.5, 60.0, shares=2, clients=50, dimension=9)
    largest = 50 * LARGEST
    assert plain.reach > 7 * math.sqrt(50 * plain.share_variance)
    assert summed.reach > largest + 7 * math.sqrt(50 * summed.share_variance)


def test_no_entry_of_an_honest_sum_wraps_but_once_in_2_to_the_40_sums():
    plain = made(ratio=60.0, shares=2, clients=50, dimension=5000, rotation=False)
    summed = DistributedSum(0.5, 60.0, shares=2, clients=50, dimension=5000)
    for noise, largest in ((plain, 50 * plain.radius), (summed, 50 * LARGEST)):
        sigma = math.sqrt(50 * (0.25 + noise.share_variance))
        assert 5000 * 2 * norm.sf((noise.reach - largest) / sigma) < 2.0**-40


def test_the_noise_of_a_sum_of_examples_covers_one_that_is_replaced():
    noise = DistributedSum(0.3, 1.5, shares=3, clients=5, dimension=40)
    sigma = math.sqrt(3 * noise.share_variance) * noise.step
    assert 1.5 * 2 * 0.3 <= sigma < 1.51 * 2 * 0.3
    assert 1.5 <= noise.ratio(3) < 1.51


def test_fewer_shares_than_are_counted_and_too_much_noise_are_refused():
    with pytest.raises(InvalidValue, match=r"shares = 5 is outside \[1, 4\]"):
        made(shares=5)
    with pytest.raises(InvalidValue, match=r"ratio = 1e\+09 and a clip of .* fewer entry_bits"):
        made(1e9, entry_bits=24, dimension=1 << 12)


EPS, DELTA = 1.0, 0.05


@pytest.mark.parametrize(("withheld", "wrong"), [(0, False), (1, True)])
def test_a_share_that_is_withheld_is_found(withheld, wrong):
    """Two shares that together have just enough: with both the claim stands, with one it falls."""
    ratio = ratio_for(EPS, DELTA, 1)
    noise = made(ratio, clip=1.0, shares=2, clients=2, dimension=2, entry_bits=10)
    signs = signs_of(noise)
    loss = PrivacyLoss(epsilon_for(noise.ratio(2), DELTA), DELTA, release=Gaussian(noise.ratio(2)))
    assert loss.epsilon <= EPS * (1 + 1e-6)

    def released(vector, entropy: Entropy):
        total = noise.rounded(np.zeros(2, np.float32), signs, entropy)
        if not withheld:
            DiscreteGaussian.at_least(Fraction(noise.share_variance)).add_to(total, entropy)
        return total + noise.share(vector, signs, entropy)

    vector = np.array([1.0, 0.0], np.float32)
    apart = noise.rounded(vector, signs, Seeded(13)) - noise.rounded(-vector, signs, Seeded(13))
    found = audit.run(
        released,
        vector,
        -vector,
        claim=loss,
        trials=8_000,
        entropy=Seeded(12),
        score=lambda total: float(total @ apart),
    )
    assert found.refuted is wrong


def test_a_mean_is_over_the_shares_in_the_sum_and_not_over_the_planned_clients():
    noise = DistributedSum(1.0, 2.0, shares=3, clients=5, dimension=4)
    total = np.array([12, -6, 0, 3], np.int64)
    assert noise.mean(total.copy(), 3, None) == pytest.approx(noise.step * total / 3)
    rotated = made(rotation=False, dimension=4, shares=3, clients=5)
    assert rotated.mean(total.copy(), 3, None) == pytest.approx(rotated.step * total / 3)


def test_the_page_says_how_much_noise_rounding_makes_necessary() -> None:
    page = " ".join((DOCS / "mechanisms/distributed_dp.md").read_text("utf-8").split())
    dimension = int(re.findall(r"a model of ([\d,]+) entries", page)[0].replace(",", ""))
    for bits, digits in ((8, 2), (4, 0)):
        stated = re.findall(rf"to {bits} `bits`[^.]* requires ([\d.]+)% more noise", page)[0]
        law = DistributedGaussian(
            1.0, 1.0, shares=900, clients=1000, dimension=dimension, entry_bits=bits
        )
        noise = math.sqrt(900 * law.share_variance) * law.step / 2
        assert float(stated) == round(100 * (noise - 1), digits)

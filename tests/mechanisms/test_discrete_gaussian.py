"""The discrete Gaussian sampler: its tables, its law, and what it does where bits run out."""

from __future__ import annotations

import bisect
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact import discrete_gaussian, gaussian_loops
from fedveil.mechanisms.exact.discrete_gaussian import DiscreteGaussian
from scripted_entropy import Scripted, word
from statistical_checks import ERROR_RATE, assert_follows

ONES, ONES32 = (1 << 64) - 1, (1 << 32) - 1

#: Small tables, where every value has a mass to compare; real ones; ones with many place bits,
#: whose draws are refused, or left to exact arithmetic, often enough to be seen.
SMALL = [(1, 0), (3, 0), (50, 0), (1, 2), (7, 3), (2, 6)]
REAL = [(1 << 20, 0), (16_670_331, 0), (262_144, 3), (912_105, 7), (312_501, 11)]


def cumulative(variance: int, bits: int, digits: int = 90) -> list[int]:
    """⌊2^bits · Pr[Y <= y]⌋ for the half line's weights exp(-y² / 2 variance), by decimals."""
    with localcontext() as context:
        context.prec = digits
        last = math.isqrt(4 * digits * variance) * 2
        weights = [(Decimal(-y * y) / (2 * variance)).exp() for y in range(last)]
        total, running, floors = sum(weights), Decimal(0), []
        for weight in weights:
            running += weight
            floors.append(int(running / total * 2**bits))
        return floors


def masses(variance: float, reach: int) -> npt.NDArray[np.float64]:
    """Pr[X = x] for x = -reach..reach, from the definition."""
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    weights = np.exp(-x * x / (2 * variance))
    return weights / math.fsum(weights)


@pytest.mark.parametrize("variance", [1, 2, 7, 1000, 50_000])
def test_the_table_is_the_law_to_31_bits(variance: int) -> None:
    thresholds, _ = discrete_gaussian._cell_table(variance)
    expected = cumulative(variance, 31)
    assert thresholds[:-1].tolist() == expected[: len(thresholds) - 1]
    assert thresholds[-2] == (1 << 31) - 1
    assert thresholds[-3] < (1 << 31) - 1
    assert thresholds[-1] == ONES32


@pytest.mark.parametrize("variance", [1, 1 << 20, (1 << 24) - 1])
def test_the_guide_finds_where_each_bucket_begins(variance: int) -> None:
    thresholds, guide = discrete_gaussian._cell_table(variance)
    firsts = np.arange(1 << 14, dtype=np.uint32) << np.uint32(17)
    assert ((guide == 0) | (thresholds[guide.astype(int) - 1] <= firsts)).all()
    assert (thresholds[guide] > firsts).all()


@given(st.integers(1, 10**6), st.integers(0, 200))
def test_bounds_enclose_what_they_bound(variance: int, bits: int) -> None:
    low, high = discrete_gaussian._exp_minus(1, 2 * variance, bits)
    with localcontext() as context:
        context.prec = 100
        exact = Decimal(2) ** bits * (Decimal(-1) / (2 * variance)).exp()
    assert low <= exact <= high
    assert high - low <= 2


def test_bounds_of_small_exponentials() -> None:
    for numerator, denominator in ((0, 1), (7, 2), (40, 1), (300, 1)):
        low, high = discrete_gaussian._exp_minus(numerator, denominator, 150)
        with localcontext() as context:
            context.prec = 200
            exact = Decimal(2) ** 150 * (Decimal(-numerator) / denominator).exp()
        assert low <= exact <= high
        assert high - low <= 1 + exact / 2**20


@pytest.mark.parametrize(("variance", "places"), SMALL)
def test_the_law_value_by_value(variance: int, places: int) -> None:
    noise = DiscreteGaussian(variance, places)
    draws = noise.draw(400_000, Seeded(1, variance, places))
    reach = int(12 * noise.variance**0.5) + 2
    assert abs(draws).max() <= reach
    counts = np.bincount(draws + reach, minlength=2 * reach + 1)
    assert_follows(counts.tolist(), masses(noise.variance, reach).tolist())


@pytest.mark.parametrize(("variance", "places"), REAL)
def test_the_law_of_large_variances(variance: int, places: int) -> None:
    noise = DiscreteGaussian(variance, places)
    draws = noise.draw(1_000_000, Seeded(2, variance, places))
    edges = np.round(stats.norm.ppf(np.linspace(0, 1, 801)[1:-1]) * noise.variance**0.5) + 0.5
    counts = np.bincount(np.searchsorted(edges, draws), minlength=800)
    law = np.diff(stats.norm.cdf(edges / noise.variance**0.5), prepend=0.0, append=1.0)
    assert_follows(counts.tolist(), law.tolist())  # the sum over a bin is the integral: s >= 1024
    for modulus in (2, 97, 256):
        residues = np.bincount(draws % modulus, minlength=modulus)
        assert_follows(residues.tolist(), [1 / modulus] * modulus)


@pytest.mark.parametrize(("variance", "places"), REAL[:4:3])
def test_moments_tails_and_neighbours(variance: int, places: int) -> None:
    count = 2_000_000
    noise = DiscreteGaussian(variance, places)
    scaled = noise.draw(count, Seeded(3, variance, places)) / noise.variance**0.5
    z = stats.norm.isf(ERROR_RATE / 2)
    assert abs(scaled.mean()) < z / count**0.5
    assert abs((scaled**2).mean() - 1) < z * (2 / count) ** 0.5
    assert abs((scaled**4).mean() - 3) < z * (96 / count) ** 0.5
    assert abs((scaled[1:] * scaled[:-1]).mean()) < z / count**0.5
    for sigmas in (3.0, 4.0, 5.0):
        beyond = int(np.count_nonzero(abs(scaled) > sigmas))
        expected = 2 * stats.norm.sf(sigmas)
        assert stats.binomtest(beyond, count, expected).pvalue > ERROR_RATE


def test_a_wrong_law_fails_the_same_test() -> None:
    draws = DiscreteGaussian(51).draw(2_000_000, Seeded(4))
    counts = np.bincount(draws + 100, minlength=201)
    with pytest.raises(AssertionError):
        assert_follows(counts.tolist(), masses(50, 100).tolist())


def starts(prefix: int, negative: int = 0) -> bytes:
    """Return the random word whose first 31 bits are `prefix`."""
    return word(prefix << 1 | negative)


@pytest.mark.parametrize("cell", [0, 1, 5, 40])
def test_an_undecided_cell_takes_further_bits(cell: int) -> None:
    noise = DiscreteGaussian(50)
    first = cumulative(50, 31)[cell]
    second = cumulative(50, 95)[cell] - (first << 64)
    third = cumulative(50, 159)[cell] - ((first << 64 | second) << 64)
    for more, expected in ((0, cell), (second - 1, cell), (second + 1, cell + 1), (ONES, cell + 1)):
        entropy = Scripted(starts(first), more)
        assert noise.draw(1, entropy).tolist() == [expected]
        assert entropy.left == 0
    for more, expected in ((third - 1, cell), (third + 1, cell + 1)):
        assert noise.draw(1, Scripted(starts(first), second, more)).tolist() == [expected]
    assert noise.draw(1, Scripted(starts(first, 1), second + 1)).tolist() == [-cell - 1]
    assert noise.draw(1, Scripted(starts(first + 1))).tolist() == [cell + 1]
    assert noise.draw(1, Scripted(starts(first - 1))).tolist() == [cell]


@pytest.mark.parametrize("undecided", [1, 2])
def test_undecided_cells_of_placed_draws_take_further_bits(undecided: int) -> None:
    first = cumulative(50, 31)[5]
    second = cumulative(50, 95)[5] - (first << 64)
    drawn = [first, first + 1, first if undecided == 2 else first - 1]
    words, cells = np.array([2 * prefix for prefix in drawn], np.uint32), np.empty(3, np.int32)
    entropy = Scripted(*[second + 1] * undecided)
    DiscreteGaussian(50, 7)._choose_cells(words, cells, entropy)
    assert (words.tolist(), entropy.left) == ([2 * prefix for prefix in drawn], 0)
    assert cells.tolist() == [6, 6, 6 if undecided == 2 else 5]


@pytest.mark.parametrize("guard", [0, 12, 96])
def test_bounds_of_the_law_hold_at_every_precision(
    guard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few guard bits the bounds are wide, and what lies between them stays undecided."""
    monkeypatch.setattr(discrete_gaussian, "_GUARD_BITS", guard)
    monkeypatch.setattr(discrete_gaussian, "_cumulative", discrete_gaussian._cumulative.__wrapped__)
    low, high = discrete_gaussian._cumulative(50, 95)
    exact = cumulative(50, 95)
    assert all(a <= b <= c for a, b, c in zip(low, exact, high, strict=False))
    assert (low == high) == (guard == 96)
    wide = next((y for y in range(len(low)) if low[y] < high[y]), None)
    if wide is not None:
        noise = DiscreteGaussian(50)
        for prefix in (low[wide], exact[wide] - 1, exact[wide] + 1, high[wide]):
            words = [prefix & ONES, 1 << 63, 5, 5]
            drawn = noise._decide_cell(prefix >> 64, Scripted(*words))
            whole = prefix << 192 | words[1] << 128 | words[2] << 64 | words[3]
            assert drawn == bisect.bisect_right(cumulative(50, 287, 150), whole)


@pytest.mark.parametrize("negative", [0, 1])
def test_a_32_bit_sum_with_an_undecided_draw_wraps_around(negative: int) -> None:
    full = np.iinfo(np.int32)
    first = cumulative(50, 31)[5]
    second = cumulative(50, 95)[5] - (first << 64)
    values = np.array([full.min + 2 if negative else full.max - 2], np.int32)
    DiscreteGaussian(50).add_to(values, Scripted(starts(first, negative), second + 1))
    assert values.tolist() == [full.max - 3 if negative else full.min + 3]


@pytest.mark.parametrize("negative", [0, 1])
def test_a_placed_draw_above_32_bits_wraps_around(negative: int) -> None:
    noise, cell = DiscreteGaussian((1 << 20) - 1, 18), 9000  # beyond the table: undecided at first
    low, high = discrete_gaussian._cumulative(noise.cell_variance, 95)
    drawn = low[cell] - 1
    assert high[cell - 1] <= drawn
    assert drawn >> 64 == (1 << 31) - 1
    entropy = Scripted(starts(drawn >> 64, negative), word(5 << 14), drawn & ONES, ONES)
    values = np.array([7], np.int32)
    noise.add_to(values, entropy)
    assert entropy.left == 0
    assert (magnitude := cell << 18 | 5) >= 1 << 31
    assert (int(values[0]) - 7 - (-magnitude if negative else magnitude)) % (1 << 32) == 0


def test_the_tail_has_no_end() -> None:
    noise = DiscreteGaussian(50)
    floors = cumulative(50, 95)
    last = (1 << 31) - 1
    for more in (1 << 63, ONES - (1 << 40), ONES - (1 << 20)):
        expected = next(y for y, floor in enumerate(floors) if floor > (last << 64 | more))
        assert noise.draw(1, Scripted(starts(last), more)).tolist() == [expected]
    further = noise.draw(1, Scripted(starts(last), ONES, ONES - (1 << 20)))
    assert further[0] > next(y for y, floor in enumerate(floors) if floor == (1 << 95) - 1)


def test_a_negative_zero_is_drawn_again() -> None:
    four, noise = cumulative(50, 31)[4], DiscreteGaussian(50)
    assert noise.draw(1, Scripted(starts(0))).tolist() == [0]
    assert noise.draw(1, Scripted(starts(0, 1), starts(four + 1))).tolist() == [5]
    twice = Scripted(starts(0, 1), starts(0, 1), starts(four + 1, 1))
    assert noise.draw(1, twice).tolist() == [-5]


def test_a_negative_zero_with_a_place_is_drawn_again() -> None:
    twice = Scripted(starts(0, 1), word(0), starts(0), word((4 << 29) - 1))
    assert DiscreteGaussian(50, 3).draw(1, twice).tolist() == [3]
    assert twice.left == 0


def test_an_undecided_negative_zero_is_drawn_again_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Draws are made in chunks. The zero is in the second chunk, and the first is not touched."""
    monkeypatch.setattr(discrete_gaussian, "_WORDS_AT_ONCE", 1)
    floors = cumulative(50, 31)
    five, six = (starts(floors[cell - 1] + 1) for cell in (5, 6))
    entropy = Scripted(five, starts(floors[0], 1), 0, six)
    assert DiscreteGaussian(50).draw(2, entropy).tolist() == [5, 6]
    assert entropy.left == 0


@pytest.mark.parametrize(("cell", "place"), [(0, 1), (0, 7), (2, 3), (9, 7), (25, 7)])
def test_whether_a_draw_is_kept_is_decided_exactly(cell: int, place: int) -> None:
    noise = DiscreteGaussian(7, 3)
    magnitude = 8 * cell + place
    with localcontext() as context:
        context.prec = 90
        loss = Decimal(place * (2 * magnitude - place)) / (2 * noise.variance)
        refused = 1 - (-loss).exp()
        first = int(refused * 2**29)
        second = int(refused * 2**93) - (first << 64)
        third = int(refused * 2**157) - ((first << 64 | second) << 64)
    word = place << 29
    for start, words, kept in (
        (first - 1, [], False),
        (first + 1, [], True),
        (first, [second - 1], False),
        (first, [second + 1], True),
        (first, [second, third - 1], False),
        (first, [second, third + 1], True),
    ):
        if 0 <= start < 1 << 29:
            entropy = Scripted(*words)
            assert noise._decide_kept(magnitude, word | start, entropy) is kept
            assert entropy.left == 0


@pytest.mark.parametrize("bits", [3, 18])
def test_the_quick_verdict_is_never_the_wrong_one(bits: int) -> None:
    """If the quick test decides, its decision equals that of exact arithmetic."""
    generator = np.random.default_rng(5)
    variance, count, unit = 7, 6000, 2 ** (32 - bits)
    words = generator.integers(0, 1 << 32, count).astype(np.uint32)
    cells = generator.integers(0, 30, count).astype(np.int32)
    places = generator.integers(0, 1 << bits, count)
    magnitudes = cells.astype(np.int64) << bits | places
    losses = places * (2 * magnitudes - places) / (2 * variance * 4**bits)
    # Close to the two ends of what is undecided, where a slip would show.
    ends = np.where(generator.random(count) < 0.5, losses, losses - losses**2 / 2)
    far = np.where(generator.random(count) < 0.5, 1, unit >> 12)
    digits = np.clip(ends * unit + generator.integers(-2, 3, count) * far, 0, unit - 1)
    place_words = (places << (32 - bits) | digits.astype(np.int64)).astype(np.uint32)
    values, listed = np.zeros(count, np.int64), np.empty(count, np.int32)
    rejected, law = np.empty(count, np.bool_), (variance, bits)
    left = gaussian_loops.add_placed(words, place_words, cells, *law, values, rejected, listed)
    noise = DiscreteGaussian(*law)
    surely = dict(zip(listed[:left].tolist(), rejected[:left].tolist(), strict=True))
    for i in np.flatnonzero(magnitudes).tolist():
        kept = noise._decide_kept(int(magnitudes[i]), int(place_words[i]), Seeded(i))
        negative = bool(words[i] & np.uint32(1))
        if i in surely:
            assert values[i] == 0
            assert not (surely[i] and kept)
        else:
            assert kept
            assert values[i] == (-magnitudes[i] if negative else magnitudes[i])
    assert 500 < left < count - 500
    assert 200 < sum(surely.values()) < left - 200


def test_the_loops_leave_little_to_exact_arithmetic() -> None:
    """It takes microseconds for each draw."""
    noise, count = DiscreteGaussian(300_000, 7), 200_000
    words, places = (Seeded(9, k).words(count // 2).view(np.uint32) for k in range(2))
    cells, values = np.empty(count, np.int32), np.zeros(count, np.int32)
    table = discrete_gaussian._cell_table(noise.cell_variance)
    assert gaussian_loops.choose_cells(words, *table, cells) < 10
    rejected, listed = np.empty(count, np.bool_), np.empty(count, np.int32)
    law = noise.cell_variance, noise.place_bits
    left = gaussian_loops.add_placed(words, places, cells, *law, values, rejected, listed)
    assert 50 < left < 400
    assert np.count_nonzero(~rejected[:left]) < 10


@pytest.mark.parametrize(("variance", "places"), SMALL + REAL)
def test_compiled_and_numpy_loops_give_the_same_bytes(
    variance: int, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    noise = DiscreteGaussian(variance, places)
    cells: Any = gaussian_loops.choose_cells
    places_loop: Any = gaussian_loops.add_placed
    table = discrete_gaussian._cell_table(variance)
    words = Seeded(6).words(1500).view(np.uint32)
    words[:500] = table[0][np.arange(500) % (len(table[0]) - 1)] << np.uint32(1)
    words[500] = np.uint32(ONES32)
    once = [np.empty(3000, np.int32) for _ in range(2)]
    undecided = [cells(words, *table, once[0]), cells.numpy_path(words, *table, once[1])]
    drawn = [noise.draw(40_000, Seeded(7))]
    monkeypatch.setattr(discrete_gaussian, "choose_cells", cells.numpy_path)
    monkeypatch.setattr(discrete_gaussian, "add_placed", places_loop.numpy_path)
    drawn.append(noise.draw(40_000, Seeded(7)))
    assert undecided[0] == undecided[1] > 0
    assert once[0].tobytes() == once[1].tobytes()
    assert drawn[0].tobytes() == drawn[1].tobytes()


def test_known_draws() -> None:
    floors = cumulative(50, 31)
    by_hand = [
        bisect.bisect_right(floors, int(drawn) >> 1) * (-1 if drawn & np.uint32(1) else 1)
        for drawn in Seeded(0).words(3).view(np.uint32)[:5]
    ]
    assert DiscreteGaussian(50).draw(5, Seeded(0)).tolist() == by_hand == [0, 5, -14, 19, 8]


def test_known_draws_with_places() -> None:
    floors = cumulative(1 << 12, 31)
    words, places = Seeded(0).words(6).view(np.uint32).reshape(2, 6).tolist()
    by_hand = [
        (8 * bisect.bisect_right(floors, drawn >> 1) + (place >> 29)) * (1 - 2 * (drawn & 1))
        for drawn, place in zip(words, places, strict=True)
    ]
    assert by_hand == [10, 414, -1046, 1401, 580, -42]
    assert DiscreteGaussian(1 << 12, 3).draw(6, Seeded(0)).tolist() == by_hand


def test_add_to_adds_what_draw_draws() -> None:
    noise = DiscreteGaussian(3, 4)
    for count in (0, 1, 32_768, 32_769, 70_000):
        values = np.arange(count)
        noise.add_to(values, Seeded(8))
        assert (values - np.arange(count)).tolist() == noise.draw(count, Seeded(8)).tolist()


def test_the_parameter_is_nearly_the_variance() -> None:
    for variance in (1, 2, 9):
        x = np.arange(-100, 101)
        exact = math.fsum(masses(variance, 100) * x * x)
        assert 0 <= variance - exact < 1e-6 * variance


@given(st.fractions(Fraction(1, 1000), Fraction(2) ** 40))
@example(Fraction((1 << 24) - 1))
@example(Fraction(1 << 24))
@example(Fraction(1 << 26))
def test_at_least_is_the_least_above(variance: Fraction) -> None:
    noise = DiscreteGaussian.at_least(variance)
    unit = 4**noise.place_bits
    assert noise.variance - unit < variance <= noise.variance
    assert noise.place_bits == 0 or noise.cell_variance >= 1 << 18
    assert noise.variance <= variance + max(1, variance / 2**18)


def test_bad_parameters_are_named() -> None:
    for variance, places in ((0, 0), (1 << 24, 0), (1 << 20, 1), (5, -1), (5, 19)):
        with pytest.raises(InvalidValue, match=r"(cell_variance|place_bits) = -?\d+ is outside"):
            DiscreteGaussian(variance, places)
    with pytest.raises(InvalidValue, match=r"cell_variance = 2\.5 is not a whole number"):
        DiscreteGaussian(2.5)  # type: ignore[arg-type]

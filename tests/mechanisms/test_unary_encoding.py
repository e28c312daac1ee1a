"""UnaryEncoding: codes, reports, estimates, variances and the privacy that it claims."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from fedveil.base import packing
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.unary import code_bits, rounding
from fedveil.mechanisms.unary.code_bits import code_count, unpack_codes
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.privacy import LossDistribution, compose
from scripted_entropy import Scripted
from statistical_checks import ERROR_RATE, assert_alike, assert_follows, loss_at_least
from unary_law import enumerated_sum_law

KINDS = ("rr", "oue")


# Numbers that the source prints


def test_p_and_q_are_the_source_s() -> None:
    for eps in (0.075, 0.5, 1.0, 9.6):
        rr, oue = UnaryEncoding("rr", eps, 50), UnaryEncoding("oue", eps, 50)
        assert rr.p == pytest.approx(math.exp(eps) / (math.exp(eps) + 1), rel=1e-15)
        assert rr.q == oue.q == pytest.approx(1 / (math.exp(eps) + 1), rel=1e-15)
        assert oue.p == 0.5
        assert rr.exact_p + rr.exact_q == 1
    assert UnaryEncoding("rr", 100.0, 50).q == pytest.approx(3.720075976020836e-44, rel=1e-14)


def test_101_states_are_50_cells() -> None:
    encoding = UnaryEncoding("rr", 0.5, 101 // 2)
    assert (encoding.states, encoding.largest_sum, encoding.sum_bits) == (101, 1275, 12)
    states = encoding.encode(np.linspace(-1, 1, 101))
    np.testing.assert_array_equal(states, np.arange(-50, 51))


def test_encode_rounds_half_to_even_and_clips() -> None:
    encoding = UnaryEncoding("rr", 1.0, 50)
    values = [0.01, 0.03, -0.01, -0.03, 0.05, 0.0151, 1.5, -7.0, np.inf, -np.inf, 0.99, 0.0]
    expected = [0, 2, 0, -2, 2, 1, 50, -50, 50, -50, 50, 0]
    np.testing.assert_array_equal(encoding.encode(values), expected)
    doubled = UnaryEncoding("rr", 1.0, 4, value_range=2.0)
    np.testing.assert_array_equal(doubled.encode(np.float32([2, 0.25, 0.75, -1])), [4, 0, 2, -2])
    np.testing.assert_array_equal(encoding.encode([[1, 0], [0, -3]]), [[50, 0], [0, -50]])


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_nan_raises(rounding: Any) -> None:
    encoding = UnaryEncoding("oue", 1.0, 5, rounding)
    with pytest.raises(InvalidValue, match="values holds NaN"):
        encoding.encode(np.array([0.0, np.nan]), Seeded(0))
    with pytest.raises(InvalidValue, match="values holds NaN"):
        encoding.perturb(np.array([np.nan]), Seeded(0))


@given(
    st.lists(st.floats(width=32, allow_nan=False), max_size=20),
    st.integers(1, 4096),
    st.floats(1e-3, 1e3),
)
def test_nearest_state_is_nearest(values: list[float], cells: int, value_range: float) -> None:
    encoding = UnaryEncoding("rr", 1.0, cells, value_range=value_range)
    states = encoding.encode(np.array(values, np.float32))
    plain = np.empty_like(states)
    assert rounding._nearest_numpy(np.array(values, np.float32), cells, value_range, plain)
    np.testing.assert_array_equal(states, plain)
    for value, state in zip(values, states.tolist(), strict=True):
        clipped = max(-value_range, min(value_range, value))
        scaled = Fraction(clipped) * cells / Fraction(value_range)
        assert abs(scaled - state) <= Fraction(1, 2) + Fraction(1, 2**40)


# Stochastic rounding


def test_stochastic_rounding_takes_neighbours_without_bias() -> None:
    encoding = UnaryEncoding("rr", 1.0, 4, "stochastic")
    for value in (0.3, -0.3, 0.99, -0.001):
        states = encoding.encode(np.full(200_000, value), Seeded(3, repr(value)))
        low = math.floor(value * 4)
        assert set(states.tolist()) <= {low, low + 1}
        assert (states[rounding._BLOCK :] != states[: -rounding._BLOCK]).any(), "new draws"
        ups = int(np.count_nonzero(states == low + 1))
        assert stats.binomtest(ups, len(states), value * 4 - low).pvalue > ERROR_RATE
    on_grid = encoding.encode(np.array([0.25, -1.0, 1.0, 0.0, 9.0]), Seeded(0))
    np.testing.assert_array_equal(on_grid, [1, -4, 4, 0, 4])


def test_stochastic_rounding_is_decided_to_the_last_digit() -> None:
    """A fraction of 2^-70 is 64 zero digits and then 2^-6: both parts are read and compared."""
    encoding = UnaryEncoding("rr", 1.0, 1, "stochastic")
    tiny = np.array([2.0**-70])
    for second, state in ((2**58 - 1, 1), (2**58, 0)):
        entropy = Scripted(0, second)
        assert encoding.encode(tiny, entropy)[0] == state
        assert encoding.encode(-tiny, Scripted(0, second))[0] == -state
        assert entropy.left == 0
    assert encoding.encode(tiny, Scripted(1))[0] == 0


@given(
    st.lists(st.floats(allow_nan=False), max_size=20), st.integers(1, 4096), st.floats(1e-3, 1e3)
)
@example([155.0, -1e308], 107, 154.11558727216376)  # beyond the range by less than a state
def test_compiled_and_numpy_rounding_are_the_same(
    values: list[float], cells: int, value_range: float
) -> None:
    array = np.array(values)
    words = Seeded(1).words(len(array))
    # Every third word meets its value's own digits, so that more are asked for.
    fraction = np.modf(np.abs(rounding._scaled(array, cells, value_range)))[0]
    words[::3] = np.ldexp(fraction, 64)[::3].astype(np.uint64)
    results = []
    for path in (rounding._stochastic, rounding._stochastic_numpy):
        states, undecided = np.empty(len(array), np.int16), np.empty(len(array), np.int32)
        count = path(array, cells, value_range, words, states, undecided)
        results.append((states.tolist(), undecided[:count].tolist()))
    assert results[0] == results[1]


def test_stochastic_rounding_needs_entropy() -> None:
    with pytest.raises(InvalidValue, match="entropy = None"):
        UnaryEncoding("rr", 1.0, 4, "stochastic").encode([0.5])


# Reports


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.5, 4.8, 100.0])
@pytest.mark.parametrize("cells", [1, 2, 50])
def test_bits_are_independent_with_p_and_q(kind: Any, eps: float, cells: int) -> None:
    """Each bit by an exact binomial test; neighbours, as pairs, by chi-square."""
    encoding = UnaryEncoding(kind, eps, cells, report="bits")
    count = 40_001
    for state in (-cells, cells - 1):
        report = encoding.perturb(np.full(count, state), Seeded(2, kind, cells, state))
        codes = unpack_codes(report, cells, count)
        for v in {-cells, -1, 0, 1, cells}:
            ones = int(codes[:, v + cells].sum())
            chance = encoding.p if v == state else encoding.q
            assert stats.binomtest(ones, count, chance).pvalue > ERROR_RATE
        if eps < 100:
            own, next_to_it = codes[:, state + cells], codes[:, state + cells + 1]
            p, q = encoding.p, encoding.q
            law = [(1 - p) * (1 - q), (1 - p) * q, p * (1 - q), p * q]
            assert_follows(np.bincount(2 * own + next_to_it, minlength=4).tolist(), law)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("eps", "cells", "state"), [(0.5, 50, 31), (2.0, 3, -3), (4.8, 50, 0)])
def test_sums_are_alike_whether_drawn_or_added_up(
    kind: Any, eps: float, cells: int, state: int
) -> None:
    states = np.full(60_000, state)
    bits = UnaryEncoding(kind, eps, cells, report="bits")
    added = bits.add(None, bits.perturb(states, Seeded(1)))
    drawn = UnaryEncoding(kind, eps, cells).perturb(states, Seeded(2))
    assert_alike(added, drawn)


def test_sum_without_tables_has_the_same_law() -> None:
    """Above 127 cells S comes from the bits."""
    encoding = UnaryEncoding("oue", 3.0, 130)
    assert encoding.sum_dtype == np.int16
    assert UnaryEncoding("oue", 3.0, 256).sum_dtype == np.int32
    sums = encoding.perturb(np.full(40_000, -77), Seeded(4))
    law = encoding.sum_law(-77)
    counts = np.bincount(sums.astype(np.int64) + encoding.largest_sum, minlength=len(law))
    assert_follows(counts.tolist(), law)


def test_chunks_of_a_sum_without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = UnaryEncoding("rr", 80.0, 200)  # no bit flips: S is the state
    monkeypatch.setattr("fedveil.mechanisms.unary.encoding._BITS_AT_ONCE", 401 * 7)
    states, sums = np.arange(-200, 201, dtype=np.int16), np.empty(401, np.int16)
    encoding._sum_of_bits(states, Seeded(0), sums)
    np.testing.assert_array_equal(sums, states)


def test_perturb_takes_values_or_states() -> None:
    encoding = UnaryEncoding("rr", 100.0, 50)
    np.testing.assert_array_equal(encoding.perturb(np.array([0.5, -1.0]), Seeded(0)), [25, -50])
    np.testing.assert_array_equal(encoding.perturb(np.array([5, -1]), Seeded(0)), [5, -1])
    with pytest.raises(InvalidValue, match=r"states from -51 to 5, outside \[-50, 50\]"):
        encoding.perturb(np.array([5, -51]), Seeded(0))
    with pytest.raises(InvalidValue, match="one dimension"):
        encoding.perturb(np.zeros((2, 2)), Seeded(0))
    with pytest.raises(InvalidValue, match="real floating type"):
        encoding.perturb(np.array([True]), Seeded(0))


@pytest.mark.parametrize("report", ["sum", "bits"])
def test_seeded_reports_repeat(report: Any) -> None:
    encoding = UnaryEncoding("oue", 1.0, 50, "stochastic", report)
    values = np.linspace(-1, 1, 500)
    first, again, other = (encoding.perturb(values, Seeded(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


# Packing


@given(st.integers(1, 32), st.data())
def test_packing_is_inverted_and_the_same_without_numba(width: int, data: Any) -> None:
    lowest = -(1 << (width - 1))
    numbers = data.draw(st.lists(st.integers(lowest, lowest + (1 << width) - 1), max_size=40))
    values = np.array(numbers, np.int64)
    packed = packing.pack(values, lowest, width)
    assert len(packed) == (len(values) * width + 7) // 8
    words = np.zeros((len(values) * width + 63) // 64, np.uint64)
    packing._pack_numpy(words, values, lowest, width)
    np.testing.assert_array_equal(words.view(np.uint8)[: len(packed)], packed)
    for path in (packing._unpack, packing._unpack_numpy):
        out = np.empty(len(values), np.int64)
        padded = np.append(packed, np.zeros(8, np.uint8))
        assert path(padded, lowest, width, out) == max(numbers, default=lowest) - lowest
        np.testing.assert_array_equal(out, values)


def test_a_known_packing() -> None:
    """-1275, 0, 1275 are 0, 1275, 2550 = 0x000, 0x4fb, 0x9f6, 12 bits each, the lowest first."""
    encoding = UnaryEncoding("rr", 1.0, 50)
    packed = encoding.pack(np.array([-1275, 0, 1275], np.int16))
    assert packed.tobytes() == bytes.fromhex("00b04ff609")
    assert encoding.packed_size(1_000_000) == 1_500_000


def test_untrusted_sums_are_checked() -> None:
    encoding = UnaryEncoding("rr", 1.0, 50)
    packed = encoding.pack(np.array([3, -1275, 1275], np.int16))
    np.testing.assert_array_equal(encoding.unpack(packed, 3), [3, -1275, 1275])
    hostile = [packed[:-1], np.append(packed, np.uint8(0)), packed.copy(), packed.copy()]
    hostile[2][-1] |= 0x10  # a spare bit
    hostile[3][-2:] = 0xF7, 0x09  # 2551, one above the range
    for bad in hostile:
        with pytest.raises(InvalidValue, match="wrong length, padding or range"):
            encoding.unpack(bad, 3)


@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 2**32))
def test_packed_codes_tell_their_number(cells: int, count: int, seed: int) -> None:
    encoding = UnaryEncoding("oue", 1.0, cells, report="bits")
    report = encoding.perturb(np.zeros(count, np.int64), Seeded(seed))
    assert len(report) == encoding.packed_size(count) == count * (2 * cells + 1) // 8 + 1
    assert code_count(report, cells) == count
    np.testing.assert_array_equal(encoding.unpack(encoding.pack(report), count), report)
    with pytest.raises(InvalidValue, match="wrong length"):
        encoding.unpack(report, count + 1)


def test_untrusted_codes_are_checked() -> None:
    encoding = UnaryEncoding("rr", 1.0, 1, report="bits")
    report = encoding.perturb(np.zeros(4, np.int64), Seeded(0))  # 12 bits and the closing one
    for last in (0, report[-1] | 0x80, report[-1] & 0x0F):
        bad = report.copy()
        bad[-1] = last
        with pytest.raises(InvalidValue, match=r"wrong length|no packing"):
            encoding.unpack(bad, 4)
    assert code_count(np.zeros(0, np.uint8), 1) is None
    with pytest.raises(InvalidValue, match="no packing of codes of 3 bits"):
        encoding.add(None, np.zeros(2, np.int16))


@pytest.mark.parametrize("cells", [1, 3, 32, 50, 200])
def test_compiled_and_numpy_codes_are_the_same(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = UnaryEncoding("rr", 1.0, cells, report="bits")
    states = np.arange(20_001) % encoding.states - cells
    compiled = encoding.perturb(states, Seeded(9))
    sums = encoding.add(None, compiled)
    for name in ("_put", "_fold"):
        kernel = getattr(code_bits, name)
        monkeypatch.setattr(code_bits, name, getattr(kernel, "numpy_path", kernel))
    np.testing.assert_array_equal(encoding.perturb(states, Seeded(9)), compiled)
    np.testing.assert_array_equal(encoding.add(None, compiled), sums)
    codes = unpack_codes(compiled, cells, len(states)).astype(np.int64)
    np.testing.assert_array_equal(sums, codes @ np.arange(-cells, cells + 1))


@pytest.mark.parametrize("report", ["sum", "bits"])
def test_a_report_that_is_made_slice_by_slice_is_one_packing(report: Any) -> None:
    """A slice has 65,536 parameters. At this epsilon no bit flips."""
    encoding, states = UnaryEncoding("rr", 100.0, 1, report=report), np.arange(65_539) % 3 - 1
    packed = encoding.pack_parts(
        len(states), lambda part: encoding.perturb(states[part], Seeded(1))
    )
    assert len(packed) == encoding.packed_size(len(states))
    running = np.zeros(len(states), np.int64)
    encoding.add_packed(running, packed)
    np.testing.assert_array_equal(running, states)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_values_that_an_update_moves_are_left_alone(rounding: Any) -> None:
    """They are the model's weights, of which the client needs more than the sum."""
    start, update = np.float32([0.2, -0.4, 0.9]), np.float32([0.3, 0.15, 5])
    before = start.copy()
    encoding = UnaryEncoding("oue", 1.0, 4, rounding, value_range=2.0)
    states = encoding.encode_moved(start, update, Seeded(0))
    np.testing.assert_array_equal(start, before)
    assert (np.abs(states - 2 * np.array([0.5, -0.25, 2.0])) < 1).all()


# Estimates


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("report", ["sum", "bits"])
@pytest.mark.parametrize(("cells", "value", "value_range"), [(50, 0.5, 1.0), (3, -4.0, 4.0)])
def test_unbiased_with_the_stated_variance(
    kind: Any, report: Any, cells: int, value: float, value_range: float
) -> None:
    encoding = UnaryEncoding(kind, 1.0, cells, report=report, value_range=value_range)
    n, parameters = 10, 10_000
    running = None
    for client in range(n):
        entropy = Seeded(6, kind, report, cells, client)
        running = encoding.add(running, encoding.perturb(np.full(parameters, value), entropy))
    assert running is not None
    estimates = encoding.estimate(running, n)
    variance = encoding.variance(n, value)
    z = (estimates.mean() - value) / math.sqrt(variance / parameters)
    assert 2 * stats.norm.sf(abs(z)) > ERROR_RATE
    ratio = estimates.var(ddof=1) / variance * (parameters - 1)
    assert ERROR_RATE < stats.chi2.cdf(ratio, parameters - 1) < 1 - ERROR_RATE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [1, 2, 3])
def test_mean_and_variance_of_the_enumerated_law(kind: Any, cells: int) -> None:
    """Exactly, from every code: E[S] = v0 (p - q), and `variance` is S's, scaled."""
    encoding = UnaryEncoding(kind, 0.7, cells, value_range=2.0)
    p, q = encoding.exact_p, encoding.exact_q
    for state in range(-cells, cells + 1):
        law = enumerated_sum_law(p, q, cells, state)
        mean = sum(s * mass for s, mass in law.items())
        assert mean == state * (p - q)
        spread = sum(s * s * mass for s, mass in law.items()) - mean**2
        expected = spread * Fraction(2, cells) ** 2 / (7 * (p - q) ** 2)
        value = state * 2.0 / cells
        assert encoding.variance(7, value) == pytest.approx(float(expected), rel=1e-12)


def test_estimate_of_a_list_and_of_running_sums_agree() -> None:
    encoding = UnaryEncoding("rr", 2.0, 5)
    reports = [encoding.perturb(np.full(30, 0.4), Seeded(i)) for i in range(4)]
    running = None
    for report in reversed(reports):
        running = encoding.add(running, report)
    assert running is not None
    by_list = encoding.estimate(reports, 4)
    np.testing.assert_array_equal(by_list, encoding.estimate(running, 4))
    room = running.copy()
    np.testing.assert_array_equal(by_list, found := encoding.estimate(room, 4, overwrite=True))
    assert np.shares_memory(found, room)
    by_hand = np.sum(reports, axis=0) / (4 * 5 * math.tanh(1.0))
    np.testing.assert_allclose(by_list, by_hand, rtol=1e-14)
    with pytest.raises(InvalidValue, match="n = 3 is not the number of reports, 4"):
        encoding.estimate(reports, 3)
    with pytest.raises(InvalidValue, match="report is of 2 parameters, the running sums of 30"):
        encoding.add(running, np.zeros(2, np.int16))


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_times_states_is_the_mean(kind: Any) -> None:
    """The source's one matrix product, with (frequency - q) / (p - q): OUE's is unbiased too."""
    encoding = UnaryEncoding(kind, 3.0, 4, report="bits", value_range=2.0)
    values = np.array([-2.0, 0.5, 1.0, 2.0])
    reports = [encoding.perturb(values, Seeded(i)) for i in range(3000)]
    frequencies = encoding.frequencies(reports)
    by_product = frequencies @ (np.arange(-4, 5) / 4 * 2.0)
    np.testing.assert_allclose(by_product, encoding.estimate(reports, 3000), rtol=1e-9, atol=1e-12)
    truth = np.zeros((4, 9))
    truth[range(4), encoding.encode(values) + 4] = 1
    p, q = encoding.p, encoding.q
    deviation = math.sqrt(max(p * (1 - p), q * (1 - q)) / 3000) / (p - q)
    assert np.abs(frequencies - truth).max() < stats.norm.isf(ERROR_RATE / 72) * deviation
    assert abs(frequencies.sum(axis=1) - 1).max() < 6 * 3 * deviation
    with pytest.raises(InvalidValue, match="report = 'sum' holds no frequencies"):
        UnaryEncoding(kind, 3.0, 4).frequencies([])
    with pytest.raises(InvalidValue, match="different numbers of parameters"):
        encoding.frequencies([reports[0], encoding.perturb(values[:2], Seeded(0))])


def test_swapped_p_and_q_turn_the_estimate_round() -> None:
    """The swap costs no more privacy (the loss is symmetric): only the estimate shows it."""
    encoding = UnaryEncoding("rr", 1.0, 5)
    encoding.exact_p, encoding.exact_q = encoding.exact_q, encoding.exact_p
    reports = encoding.perturb(np.full(20_000, 0.8), Seeded(0))
    honest = UnaryEncoding("rr", 1.0, 5)
    mean = honest.estimate(reports.astype(np.int64), 1).mean()
    deviation = math.sqrt(honest.variance(20_000))
    assert abs(mean + 0.8) < 6 * deviation
    assert abs(mean - 0.8) > 50 * deviation


# Variance: the figures of the documentation


def test_variance_formula() -> None:
    """Per state and client: rr e^eps / (e^eps - 1)², oue 4 e^eps / (e^eps - 1)² (eq. 7's)."""
    for eps in (0.3, 1.0, 4.8):
        squares = sum((v / 50) ** 2 for v in range(-50, 51))
        for kind, factor in (("rr", 1), ("oue", 4)):
            encoding = UnaryEncoding(kind, eps, 50)  # type: ignore[arg-type]
            expected = squares * factor * math.exp(eps) / math.expm1(eps) ** 2 / 100
            assert encoding.variance(100) == pytest.approx(expected, rel=1e-12)
            q, p = encoding.q, encoding.p
            own = (p * (1 - p) - q * (1 - q)) / (100 * (p - q) ** 2)
            got = encoding.variance(100, 0.5)
            assert got == pytest.approx(expected + 0.25 * own, rel=1e-12)


def test_rr_at_half_epsilon_matches_oue() -> None:
    """Equal true loss: alike for small eps, oue ahead for large. Equal eps: rr ahead, at twice.

    With y = eps / 4: (1 / sinh² 2y) / (1 / (4 sinh² y)) = 1 / cosh² y.
    """
    for eps in (0.1, 0.5, 4.8):
        rr_half = UnaryEncoding("rr", eps / 2, 50)
        oue = UnaryEncoding("oue", eps, 50)
        rr = UnaryEncoding("rr", eps, 50)
        assert rr_half.loss_per_parameter.epsilon == oue.loss_per_parameter.epsilon
        ratio = oue.variance(1) / rr_half.variance(1)
        assert ratio == pytest.approx(1 / math.cosh(eps / 4) ** 2, rel=1e-12)
        assert oue.variance(1) == pytest.approx(4 * rr.variance(1), rel=1e-12)
        assert rr.loss_per_parameter.epsilon == 2 * oue.loss_per_parameter.epsilon


# Privacy


def test_claimed_losses() -> None:
    rr, oue = UnaryEncoding("rr", 0.5, 50), UnaryEncoding("oue", 0.5, 50)
    assert (rr.loss_per_bit.epsilon, rr.loss_per_bit.per) == (0.5, "bit")
    assert (rr.loss_per_parameter.epsilon, rr.loss_per_parameter.per) == (1.0, "parameter")
    assert oue.loss_per_bit.epsilon == pytest.approx(math.log((1 + math.exp(0.5)) / 2), rel=1e-15)
    assert oue.loss_per_parameter.epsilon == 0.5
    assert UnaryEncoding("oue", 100.0, 3).loss_per_bit.epsilon == pytest.approx(100 - math.log(2))
    assert all(e.loss_per_parameter.pure for e in (rr, oue))
    assert rr.loss_per_parameter.part == rr.loss_per_bit


def test_the_stated_loss_of_one_bit_is_never_below_the_exact_one() -> None:
    with localcontext(prec=60):
        for eps in (n / 40 for n in range(1, 300)):
            exact = ((1 + Decimal(repr(eps)).exp()) / 2).ln()
            stated = Decimal(UnaryEncoding("oue", eps, 1).loss_per_bit.epsilon)
            assert exact <= stated <= exact * (1 + Decimal("2e-15"))


@pytest.mark.parametrize(
    ("kind", "report", "count", "together"),
    [
        ("rr", "sum", 100, 8.33),
        ("rr", "bits", 100, 51.97),
        ("rr", "sum", 10_000, 222),
        ("rr", "bits", 10_000, 2740),
        ("oue", "bits", 100, 20.04),
        ("oue", "sum", 100, 3.69),
    ],
)
def test_composed_losses(kind: Any, report: Any, count: int, together: float) -> None:
    """At delta = 1e-5, eps 0.5 and 101 states: sums cost a fraction of what bits do."""
    loss = UnaryEncoding(kind, 0.5, 50, report=report).loss_per_parameter
    got = compose([(loss, count)], 1e-5)
    assert together * 0.99 < got <= together
    assert compose([(loss, count)]) == count * loss.epsilon


def test_the_release_of_sums_is_the_worst_pair_of_all() -> None:
    """Its curve is nowhere below that of any two states, by the definition of the curve."""
    encoding = UnaryEncoding("rr", 1.0, 3)
    release = encoding.loss_per_parameter.resolved().release
    assert isinstance(release, LossDistribution)
    assert release.largest == pytest.approx(2.0)
    for level in (0.0, 0.5, 1.0, 1.9):
        above = release.losses > level
        curve = (release.masses[above] * -np.expm1(level - release.losses[above])).sum()
        for a in range(-3, 4):
            for b in range(-3, 4):
                law_a, law_b = encoding.sum_law(a), encoding.sum_law(b)
                assert np.maximum(law_a - math.exp(level) * law_b, 0).sum() <= curve + 1e-12


def test_many_cells_are_charged_as_their_bits() -> None:
    for cells in (128, 4096):
        sums = UnaryEncoding("rr", 1.0, cells).loss_per_parameter.resolved()
        bits = UnaryEncoding("rr", 1.0, 50, report="bits").loss_per_parameter.resolved()
        assert sums == bits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.1, 0.5, 4.8, 100.0])
def test_the_exact_law_never_passes_the_claim(kind: Any, eps: float) -> None:
    """The greatest likelihood ratio of S over all pairs of states, in whole numbers: tight."""
    encoding = UnaryEncoding(kind, eps, 2)
    p, q = encoding.exact_p, encoding.exact_q
    laws = [enumerated_sum_law(p, q, 2, state) for state in range(-2, 3)]
    worst = max(a[s] / b[s] for a in laws for b in laws for s in a)
    own_bit = max(p / q, (1 - q) / (1 - p))
    with localcontext(prec=60):
        for ratio, factor in ((worst, 2 if kind == "rr" else 1), (own_bit, None)):
            got = Decimal(ratio.numerator) / Decimal(ratio.denominator)
            power = Decimal(repr(eps)).exp()
            if factor is None:
                claim = power if kind == "rr" else (1 + power) / 2
            else:
                claim = power**factor
            assert got <= claim
            assert got > claim * (1 - Decimal("1e-12"))


def loss_of_one_parameter(encoding: UnaryEncoding, trials: int) -> float:
    """By telling the states 1 and -1 apart: S = 1 is likelier under the first."""
    hits = [
        int(np.count_nonzero(encoding.perturb(np.full(trials, x), Seeded(8, repr(x))) == 1))
        for x in (1, -1)
    ]
    return loss_at_least(hits[0], hits[1], trials)


@pytest.mark.parametrize("kind", KINDS)
def test_distinguishing_game_stays_below_the_claim(kind: Any) -> None:
    encoding = UnaryEncoding(kind, 0.5, 1)
    claim = encoding.loss_per_parameter.epsilon
    assert 0.97 * claim < loss_of_one_parameter(encoding, 1_000_000) < claim


def test_distinguishing_game_finds_planted_defects() -> None:
    """OUE with RR's p, and RR with half its q, each cost more than is claimed: the game says so."""
    oue = UnaryEncoding("oue", 0.5, 1)
    oue.exact_p = 1 - oue.exact_q
    halved = UnaryEncoding("rr", 0.5, 1)
    halved.exact_q /= 2
    for encoding in (oue, halved):
        assert loss_of_one_parameter(encoding, 300_000) > encoding.loss_per_parameter.epsilon


# Domains


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("grr", 1.0, 5), "kind = 'grr' is not one of rr, oue"),
        (("rr", 0.0, 5), r"eps = 0.0 is outside \(0, 700\]"),
        (("rr", 701.0, 5), r"eps = 701.0 is outside \(0, 700\]"),
        (("oue", 1e-17, 5), "eps = 1e-17 is too small"),
        (("rr", 1.0, 0), r"cells = 0 is outside \[1, 4096\]"),
        (("rr", 1.0, 5, "up"), "rounding = 'up' is not one of nearest, stochastic"),
        (("rr", 1.0, 5, "nearest", "all"), "report = 'all' is not one of sum, bits"),
        (("rr", 1.0, 5, "nearest", "sum", -1.0), r"value_range = -1.0 is outside \(0, inf\)"),
    ],
)
def test_domains(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        UnaryEncoding(*arguments)


def test_the_smallest_and_largest_epsilon_work() -> None:
    for eps in (1e-15, 700.0):
        for kind in KINDS:
            encoding = UnaryEncoding(kind, eps, 2)  # type: ignore[arg-type]
            assert 0 < encoding.q < 0.5
            assert len(encoding.perturb(np.zeros(9), Seeded(0))) == 9

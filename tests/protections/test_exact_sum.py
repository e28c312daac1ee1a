"""The running sum is exact, regardless of the order of its terms."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.base import two_threads
from fedveil.protections import exact_sum
from fedveil.protections.exact_sum import ExactSum

ENTRIES = st.one_of(
    st.floats(-(2.0**30), 2.0**30, width=32),
    st.floats(-(2.0**-10), 2.0**-10, width=32),
    st.sampled_from([0.0, -0.0, 1e-40, -1e-40, 2.0**-44, -(2.0**-44), -1.0, 0.99999994, 511.99997]),
)
TERMS = st.lists(st.tuples(ENTRIES, st.integers(1, 1000)), max_size=20)


def summed(terms: list[tuple[float, int]]) -> ExactSum:
    running = ExactSum(1)
    for value, weight in terms:
        running.add(np.array([value], np.float32), weight)
    return running


def units(running: ExactSum, entry: int = 0) -> int:
    """Return the sum in units of 2^-44, regardless of its parts."""
    far = running._far
    high = 0 if far is None else (int(far._whole[entry]) << 44) + int(far._places[entry])
    return high + int(running._near[entry])


def total(terms: list[tuple[float, int]]) -> int:
    return units(summed(terms))


def by_fractions(terms: list[tuple[float, int]]) -> int:
    """Compute that sum from its definition: truncate every term to 44 binary places, then add."""
    return sum(int(Fraction(float(np.float32(v))) * w * 2**44) for v, w in terms)


@given(TERMS)
def test_against_rational_arithmetic(terms: list[tuple[float, int]]) -> None:
    assert total(terms) == by_fractions(terms)


@given(TERMS, st.randoms())
def test_the_order_changes_nothing(terms: list[tuple[float, int]], shuffle: object) -> None:
    shuffled = list(terms)
    shuffle.shuffle(shuffled)  # type: ignore[attr-defined]
    assert total(terms) == total(shuffled)


@given(TERMS, TERMS)
def test_merging_is_adding(left: list[tuple[float, int]], right: list[tuple[float, int]]) -> None:
    one = summed(left)
    one.merge(summed(right))
    assert units(one) == total(left + right)
    assert one.value().tobytes() == summed(left + right).value().tobytes()
    assert one.terms == len(left) + len(right)


@settings(max_examples=15)
@given(st.integers(1, 3), st.lists(st.floats(0, 500, width=32), min_size=7, max_size=7))
def test_many_terms_move_into_the_wide_sum_before_they_could_overflow(
    parts: int, values: list[float]
) -> None:
    row = np.array(values, np.float32)
    few = [row, -row / np.float32(3), np.full(7, 511.99997, np.float32)]
    whole, merged = ExactSum(7), ExactSum(7)
    for term in few * 400:
        whole.add(term)
    for part in range(parts):
        share = ExactSum(7)
        for term in (few * 400)[part::parts]:
            share.add(term)
        merged.merge(share)
    expected = [400 * by_fractions([(float(term[i]), 1) for term in few]) for i in range(7)]
    for running in (whole, merged):
        assert [units(running, i) for i in range(7)] == expected
    assert whole.value().tobytes() == merged.value().tobytes()
    assert whole.value() == pytest.approx([each / 2**44 for each in expected], rel=1e-15)


@pytest.mark.parametrize("sign", [1, -1])
def test_full_sums_merge_without_wrapping(sign: int) -> None:
    """Each of the three contains almost 2^62 units, and two of them overflow 64 bits."""
    full = [(sign * 511.99997, 1)] * 512
    merged = ExactSum(1)
    for _ in range(3):
        merged.merge(summed(full))
    assert units(summed(full * 3)) == 3 * by_fractions(full)
    assert units(merged) == 3 * by_fractions(full)
    assert np.sign(merged.value()[0]) == sign


def test_many_sums_that_are_far_from_full_merge_without_wrapping() -> None:
    """Nine sums of 300 terms contain more than 2^64 units."""
    part = [(511.99997, 1)] * 300
    merged, one = ExactSum(1), summed(part)
    for _ in range(9):
        merged.merge(one)
    assert units(merged) == 9 * by_fractions(part)


@pytest.mark.parametrize("value", [3.5, 2.0**20])
def test_a_mean_is_the_sum_divided_whichever_part_holds_it(value: float) -> None:
    assert summed([(value, 3), (-0.5, 2)]).value(5).tolist() == [(3 * value - 1) / 5]


@given(st.lists(st.tuples(ENTRIES, st.integers(1, 1000)), min_size=1, max_size=20))
def test_the_compiled_loop_and_numpy_give_the_same_bytes(terms: list[tuple[float, int]]) -> None:
    sums = [np.zeros(1, np.int64) for _ in range(2)]
    for value, weight in terms:
        vector = np.array([value], np.float32)
        limit = exact_sum._pattern(2**9 / weight)
        loops = (exact_sum._add_below, exact_sum._add_below_numpy)
        added = [
            add(units, vector, weight * 2.0**44, limit)
            for add, units in zip(loops, sums, strict=True)
        ]
        assert added == 2 * [bool(np.abs(vector) < np.float32(2**9 / weight))]
        pattern = vector.view(np.uint32)
        assert exact_sum._largest_pattern(pattern) == exact_sum._largest_pattern_numpy(pattern)
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    "values", [[], [0.0], [1, -3, 2], [-np.inf, 1], [np.nan, np.inf], [-np.nan, 1]]
)
def test_the_largest_magnitude(values: list[float]) -> None:
    vector = np.array(values, np.float32)
    expected = np.abs(vector).max(initial=0.0)
    np.testing.assert_equal(exact_sum.largest_magnitude(vector), float(expected))


@pytest.mark.parametrize("weight", [1, 3, 1000, 2**31 - 1, 2**31])
@pytest.mark.parametrize("scale", [1 - 2.0**-23, 1, 4 - 2.0**-20])
def test_no_term_is_near_that_could_overflow(weight: int, scale: float) -> None:
    """600 terms on either side of the bound for terms that are added in one integer."""
    value = np.float32(2.0**9 / weight * scale)
    running = ExactSum(1)
    for _ in range(600):
        running.add(np.array([value]), weight)
    assert running.value()[0] == pytest.approx(600 * float(value) * weight, rel=1e-12)


@pytest.mark.parametrize("place", [None, 0, 4095, 4096, 9999])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0**9])
def test_the_compiled_loop_looks_at_every_block(place: int | None, bad: float) -> None:
    vector = np.linspace(-3, 3, 10_000, dtype=np.float32)
    if place is not None:
        vector[place] = bad
    sums = [np.arange(10_000) for _ in range(2)]
    limit = exact_sum._pattern(2.0**9)
    loops = (exact_sum._add_below, exact_sum._add_below_numpy)
    added = [add(units, vector, 2.0**44, limit) for add, units in zip(loops, sums, strict=True)]
    assert added == 2 * [place is None]
    np.testing.assert_array_equal(*sums)
    assert (sums[0] == np.arange(10_000)).all() == (place is not None)


@pytest.mark.parametrize("long", [1, 1 << 22])
@pytest.mark.parametrize("place", [0, 4095, 4999, 5000, 9999])
def test_a_term_that_is_refused_or_large_at_any_place(
    place: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terms are added block by block, and long ones by two threads. What was added is undone."""
    monkeypatch.setattr(two_threads, "_LONG", long)
    ordinary = np.linspace(-3, 3, 10_000, dtype=np.float32)
    five_times = ordinary.astype(np.float64) * 5
    running = ExactSum(10_000)
    running.add(ordinary, 5)
    for bad in (np.nan, np.inf, 2.0**41):
        vector = ordinary.copy()
        vector[place] = bad
        with pytest.raises(ValueError, match="not finite or too large"):
            running.add(vector)
        np.testing.assert_array_equal(deepcopy(running).value(), five_times)
    vector[place] = 2.0**30
    running.add(vector)
    np.testing.assert_array_equal(running.value(), five_times + vector)
    assert running.terms == 2


def test_value_is_the_sum() -> None:
    running = ExactSum(3)
    running.add(np.array([0.5, -0.25, 1e6], np.float32), 3)
    running.add(np.array([0.125, -1, 1], np.float32))
    np.testing.assert_array_equal(running.value(), [1.625, -1.75, 3000001.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**41, -(2.0**41)])
def test_a_refused_term_changes_nothing(bad: float) -> None:
    running = ExactSum(2)
    running.add(np.array([1, 2], np.float32))
    with pytest.raises(ValueError, match="not finite or too large"):
        running.add(np.array([1, bad], np.float32))
    assert running.terms == 1
    np.testing.assert_array_equal(running.value(), [1, 2])


def test_a_terms_weight_counts_against_the_limit() -> None:
    running = ExactSum(1)
    running.add(np.array([2.0**39], np.float32), 2)
    with pytest.raises(ValueError, match="not finite or too large"):
        running.add(np.array([2.0**39], np.float32), 3)
    assert running.value()[0] == 2.0**40


def test_merged_sums_have_no_more_terms_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_sum, "MAX_TERMS", 5)
    one, other = summed([(1, 1)] * 3), summed([(1, 1)] * 2)
    one.merge(other)
    with pytest.raises(ValueError, match="more than 5 terms"):
        one.merge(summed([(1, 1)]))


def test_the_largest_terms_do_not_wrap() -> None:
    running = ExactSum(1)
    for _ in range(100):
        running.add(np.array([2.0**40], np.float32))
    assert running.value()[0] == 100 * 2.0**40
    assert exact_sum.MAX_TERMS * exact_sum.MAX_MAGNITUDE <= 2.0**62

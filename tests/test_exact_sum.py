"""The running sum is exact, whatever the order of its terms."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.protections import exact_sum
from fedveil.protections.exact_sum import ExactSum

ENTRIES = st.one_of(
    st.floats(-(2.0**30), 2.0**30, width=32),
    st.floats(-(2.0**-10), 2.0**-10, width=32),
    st.sampled_from([0.0, -0.0, 1e-40, -1e-40, -1e-30, 2.0**-64, -(2.0**-64), -1.0, 0.99999994]),
)
TERMS = st.lists(st.tuples(ENTRIES, st.integers(1, 1000)), max_size=20)


def total(terms: list[tuple[float, int]]) -> tuple[int, int]:
    running = ExactSum(1)
    for value, weight in terms:
        running.add(np.array([value], np.float32), weight)
    return int(running._whole[0]), int(running._places[0])


def by_fractions(terms: list[tuple[float, int]]) -> tuple[int, int]:
    """The same sum written out: every term cut to 64 binary places, then added."""
    cut = sum(int(Fraction(float(np.float32(v))) * w * 2**64) for v, w in terms)
    return divmod(cut, 2**64)


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
    one, other = ExactSum(1), ExactSum(1)
    for value, weight in left:
        one.add(np.array([value], np.float32), weight)
    for value, weight in right:
        other.add(np.array([value], np.float32), weight)
    one.merge(other)
    assert (int(one._whole[0]), int(one._places[0])) == total(left + right)
    assert one.terms == len(left) + len(right)


@given(st.lists(st.tuples(ENTRIES, st.integers(1, 1000)), min_size=1, max_size=20))
def test_the_compiled_loop_and_numpy_give_the_same_bytes(terms: list[tuple[float, int]]) -> None:
    sums = [(np.zeros(1, np.int64), np.zeros(1, np.uint64)) for _ in range(2)]
    for value, weight in terms:
        vector = np.array([value], np.float32)
        exact_sum._add(*sums[0], vector, float(weight))
        exact_sum._add_numpy(*sums[1], vector, float(weight))
    assert sums[0] == sums[1]


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


def test_the_largest_terms_do_not_wrap() -> None:
    running = ExactSum(1)
    for _ in range(100):
        running.add(np.array([2.0**40], np.float32))
    assert running.value()[0] == 100 * 2.0**40
    assert exact_sum.MAX_TERMS * exact_sum.MAX_MAGNITUDE <= 2.0**62

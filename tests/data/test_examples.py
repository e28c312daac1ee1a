"""The checks that all data sets share, and the part that tests."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedveil.base.example_arrays import items, ragged
from fedveil.data.examples import holdout, make_dataset, owner_codes


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80))
def test_holdout_takes_a_fifth_of_each_class(labels):
    labels = np.array(labels)
    train, test = holdout("any", labels)
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in set(labels):
        count = (labels == label).sum()
        assert (labels[test] == label).sum() == int(count / 5 + 0.5)


def test_holdout_depends_on_the_name_and_is_no_fixed_end_of_the_file():
    labels = np.zeros(100, np.int64)
    one, other = holdout("one", labels)[1], holdout("other", labels)[1]
    assert list(one) == list(holdout("one", labels)[1])
    assert list(one) != list(other)
    assert set(one) not in (set(range(20)), set(range(80, 100)))


@given(
    st.one_of(
        st.lists(st.integers(-(10**30), 10**30), max_size=20),
        st.lists(st.text(max_size=2), max_size=20),
    )
)
def test_owners_are_numbered_in_sorted_order(owners):
    codes = owner_codes(owners)
    assert codes.dtype == np.int64
    assert [sorted(set(owners))[code] for code in codes] == owners


def test_examples_of_different_lengths_and_types_are_kept_as_they_are():
    """The widest type is the array's, whichever example has it."""
    given = [np.array([1, 2], np.int16), np.array([0.5, -0.25, 4]), np.array([7], np.float32)]
    found = items(ragged(given))
    assert [item.tolist() for item in found] == [[1, 2], [0.5, -0.25, 4], [7]]


def test_values_are_kept_as_they_are():
    values = np.array([[0.1, -300.0], [1e30, 0]], np.float32)
    data = make_dataset("any", (values, [0, 1]), (values, [0, 1]))
    assert np.array_equal(data.train.x, values)

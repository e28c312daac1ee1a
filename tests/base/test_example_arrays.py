"""Examples of several lengths and types in one array."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.base.example_arrays import (
    alike,
    as_finite,
    as_whole,
    blank,
    items,
    joined,
    opened,
    ragged,
    shape_of,
    stacked,
    values,
)


def test_examples_of_different_lengths_keep_their_length_and_the_wider_type() -> None:
    first = ragged([np.array([1, 2], np.uint8), np.array([300, 4, 5], np.int16)])
    assert [item.tolist() for item in items(first)] == [[1, 2], [300, 4, 5]]
    assert values(first).tolist() == [1, 2, 300, 4, 5]
    assert values(np.zeros((2, 3))).shape == (2, 3)
    whole = stacked([first, np.array([[7, 8, 9, 6]], np.int32)])
    assert [item.tolist() for item in items(whole)] == [[1, 2], [300, 4, 5], [7, 8, 9, 6]]
    assert shape_of(whole) == (-1,)
    assert [shape_of(part) for part in alike([np.zeros((2, 3)), first])] == [(-1,), (-1,)]
    with pytest.raises(ValueError, match="single numbers"):
        alike([first, np.array([3])])


def test_whole_numbers_are_those_that_64_bits_hold() -> None:
    rows = np.array([[2.0**63, 1.0], [-(2.0**63), 2.0], [0.5, 1.0], [np.nan, 1.0], [3.0, 4.0]])
    found, usable = as_whole(rows)
    assert usable.tolist() == [False, True, False, False, True]
    assert found[[1, 4]].tolist() == [[-(2**63), 2], [3, 4]]
    assert as_whole(np.array([-1e30, 1e30, -7.0]))[1].tolist() == [False, False, True]
    assert as_whole(np.array([[2**63], [2**63 - 1]], np.uint64))[1].tolist() == [False, True]


def test_unusable_examples_become_zeros_and_the_given_array_keeps_them() -> None:
    given = np.array([[[1.0, 2.0, 3.0]], [[1e300, 3.0, 4.0]], [[5.0, np.nan, 6.0]]])
    rows, usable = as_finite(given)
    assert usable.tolist() == [True, False, False]  # float32 has no 1e300
    before = rows.copy()
    assert blank(rows, usable).tolist() == [[[1, 2, 3]], [[0, 0, 0]], [[0, 0, 0]]]
    np.testing.assert_array_equal(rows, before)
    assert blank(rows, np.array([True] * 3)) is rows


def test_examples_of_several_inputs_keep_each_input_with_its_shape() -> None:
    """An image of 2 times 5 and a table of rows of 3 numbers, whose length differs."""
    tables = [np.arange(3 * length).reshape(length, 3) + length for length in (2, 1, 4)]
    images = np.arange(30).reshape(3, 2, 5)
    parts = [
        joined({"image": images[:2], "table": ragged(tables[:2])}),
        joined({"image": images[2:], "table": ragged(tables[2:])}),
    ]
    whole = stacked(parts)
    assert shape_of(whole) == {"image": (2, 5), "table": (-1, 3)}
    found = opened(whole)
    assert isinstance(found, dict)
    np.testing.assert_array_equal(found["image"], images)
    assert [item.tolist() for item in found["table"]] == [table.tolist() for table in tables]


@pytest.mark.parametrize("order", [1, -1])
def test_examples_with_several_inputs_do_not_join_those_of_different_lengths(order: int) -> None:
    several = joined({"left": np.ones((2, 3)), "right": np.zeros((2, 1))})
    lengths = ragged([np.arange(2), np.arange(4)])
    with pytest.raises(ValueError, match="other inputs"):
        stacked([several, lengths][::order])


def test_examples_of_other_inputs_are_no_examples_of_one_kind() -> None:
    left, both = joined({"left": np.ones((2, 3))}), {"left": np.ones((2, 3)), "right": np.ones(2)}
    for other in (joined(both), joined({"right": np.ones((2, 3))}), np.ones((2, 3))):
        for parts in ([left, other], [other, left]):
            with pytest.raises(ValueError, match="they have other inputs"):
                alike(parts)

"""The checks that all data sets share, and the part that tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.base.example_arrays import items, ragged
from fedveil.data.examples import Examples, holdout, make_dataset, of_tests, owner_codes
from fedveil.errors import DataInvalid


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


def test_chosen_examples_keep_their_marks():
    examples = Examples(np.arange(4.0), np.arange(4), np.array([True, False, True, False]))
    chosen = examples.of(np.array([3, 2]))
    assert (chosen.y.tolist(), chosen.usable.tolist()) == ([3, 2], [False, True])
    assert examples.of(slice(1, 3)).usable.tolist() == [False, True]


def test_the_outputs_of_a_model_follow_from_both_parts_and_what_is_declared():
    x = np.zeros((2, 3), np.float32)
    assert make_dataset("any", (x, [0, 1]), (x, [5, 2])).classes == 6
    y = np.arange(12.0).reshape(2, 2, 3)
    own = make_dataset("any", (x, y), (x, y), targets="own", classes=7)
    assert (own.classes, own.target_shape, own.labels) == (7, (2, 3), None)
    pair = np.zeros((2, 2))
    assert make_dataset("any", (x, pair), (x, pair), targets="numbers").classes == 2
    with pytest.raises(DataInvalid, match="y_test have 2 columns, but 3 are needed"):
        make_dataset("any", (x, pair), (x, pair), targets="numbers", classes=3)
    with pytest.raises(DataInvalid, match=r"other than 0 and 1 at example 1$"):
        make_dataset("any", (x, pair), (x, [[0, 1], [1, 2]]), targets="bits")


def test_next_tokens_are_the_tokens_after_and_need_two():
    x = np.array([[4, 2, 7], [1, 0, 3]], np.int16)
    data = make_dataset("any", (x, None), (x, None), targets="tokens")
    assert data.train.x.tolist() == [[4, 2], [1, 0]]
    assert (data.train.y.tolist(), data.train.y.dtype) == ([[2, 7], [0, 3]], np.int64)
    uneven = [[4, 2, 7], [1, 0]]
    data = make_dataset("any", (uneven, None), (uneven, None), targets="tokens")
    assert [tokens.tolist() for tokens in items(data.train.x)] == [[4, 2], [1]]
    assert [tokens.tolist() for tokens in items(data.train.y)] == [[2, 7], [0]]
    mixed = make_dataset("any", (x, None), (uneven, None), targets="tokens")
    assert (mixed.train.x.dtype.names, mixed.train.y.dtype.names) == (data.train.x.dtype.names,) * 2
    for tokens, sentence in (
        (x[:, :1], r"x_train has shape \(2, 1\), but \[examples, tokens\] is needed"),
        ([[4, 2], [7]], "example 1 of x_train has fewer than two tokens"),
        ([[4, 2, 7], [1, -5]], "x_train holds -5, but a token is a whole number from 0$"),
        (x - 5, "x_train holds -1, but a token is a whole number from 0$"),
        ([[4, 2, 7], [1, -100]], "x_train holds -100, but a token is a whole number from 0$"),
        (x.astype(np.uint64) + 2**63, f"x_train holds {2**63 + 4}, but a token is"),
    ):
        with pytest.raises(DataInvalid, match=sentence):
            make_dataset("any", (tokens, None), (x, None), targets="tokens")
    for bad in (learnt := np.array([[-100, 7], [0, -100]])) - 1, learnt + 2**31:
        with pytest.raises(DataInvalid, match=r"y_train holds .* from 0, or -100 to learn"):
            make_dataset("any", (x[:, 1:], bad), (x[:, 1:], learnt), targets="tokens")
    assert (
        make_dataset("any", (x[:, 1:], learnt), (x[:, 1:], learnt), targets="tokens").classes == 8
    )


def test_a_token_that_is_only_ever_first_is_one_of_the_model_s_tokens():
    first, other = np.array([[9, 1, 2]]), np.array([[1, 2, 0]])
    for train, test in ((first, other), (other, first), ([[1, 9, 2], [9, 1]], other)):
        assert make_dataset("any", (train, None), (test, None), targets="tokens").classes == 10
    assert of_tests("any", first, None, classes=None, targets="tokens").classes == 10
    ragged = [[1, 9, 2], [9, 1]]
    for x, y in ((first, other), (ragged, [[0, 1, 2], [2, 0]])):
        assert make_dataset("any", (x, y), (other, other), targets="tokens").classes == 10
        assert make_dataset("any", (other, other), (x, y), targets="tokens").classes == 10
        assert of_tests("any", x, y, classes=None, targets="tokens").classes == 10
    # A declared number is kept: the model may read more tokens than it predicts.
    declared = make_dataset("any", (first, other), (other, other), classes=3, targets="tokens")
    assert declared.classes == 3
    assert of_tests("any", first, other, classes=3, targets="tokens").classes == 3
    several = {"text": first, "pixel": np.ones((1, 2))}
    test = {"text": other, "pixel": np.ones((1, 2))}
    assert make_dataset("any", (several, other), (test, other), targets="tokens").classes == 3


@pytest.mark.parametrize("targets", ["class", "numbers", "own"])
def test_only_tokens_follow_from_the_examples(targets):
    x = np.array([[4, 2, 7], [1, 0, 3]])
    with pytest.raises(DataInvalid, match="y_test is None, but only the targets of task = next_to"):
        make_dataset("any", (x, [0, 1]), (x, None), targets=targets)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_label_between_two_classes_is_refused_in_every_type_of_number(kind):
    x = np.zeros((3, 2), np.float32)
    assert make_dataset("any", (x, kind([0, 2, 1])), (x, [0, 1, 2])).train.y.tolist() == [0, 2, 1]
    with pytest.raises(DataInvalid, match=r"y_train holds 1\.5 at example 1"):
        make_dataset("any", (x, kind([0, 1.5, 2])), (x, [0, 1, 2]))

"""Records that are read one by one: which of them count, and what is said of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.base.example_arrays import IGNORED
from fedveil.data.lone_records import Form, described, items, read
from fedveil.errors import DataInvalid


@pytest.mark.parametrize(
    ("record", "counts"),
    [
        ([1.5, -2.0], True), (np.array([1.5 + 0j, -2.0]), True),
        (np.array([1.5, -2.0 + 1j]), False),
        (["1.5", "-2"], True), ([1.5], False), ([1.5, np.nan], False), (None, False),
    ],
)  # fmt: skip
def test_a_record_counts_if_it_is_real_numbers_of_the_job_s_shape(
    record: Any, counts: bool
) -> None:
    form = Form((2,), "class", 3)
    found = read("own", [([[0.0, 1.0], record], [2, 1])], form)
    assert found.usable is not None
    assert found.usable.tolist() == [True, counts]
    assert found.x.tolist() == [[0.0, 1.0], [1.5, -2.0] if counts else [0.0, 0.0]]
    assert found.y.tolist() == [2, int(counts)]


def test_the_first_record_without_effect_is_named() -> None:
    assert described(np.ones(4, np.bool_)) is None
    said = described(np.array([True, False, True, False, False]))
    assert said is not None
    assert said.startswith("3 of 5 training examples have no effect, starting with example 1: ")


@pytest.mark.parametrize("y", [[0.5, -1.0, "text"], [[0.5], [-1.0], [2.0, 3.0]]])
def test_the_target_of_one_output_may_be_a_number_or_a_list_of_one(y: list[Any]) -> None:
    found = read("own", [([[0.0, 1.0]] * 3, y)], Form((2,), "numbers", 1))
    assert found.usable is not None
    assert found.usable.tolist() == [True, True, False]
    assert found.y.tolist() == [[0.5], [-1.0], [0.0]]


def test_a_single_record_of_another_shape_counts_for_nothing() -> None:
    """NumPy makes an array of numbers of a single record, whatever its shape."""
    form = Form((2,), "class", 3)
    for x in (np.ones((1, 3)), np.array([4.0]), np.array(["2024-01-31"], "M8[D]")):
        found = read("own", [(np.zeros((2, 2)), [0, 1]), (x, [2])], form)
        assert found.usable is not None
        assert found.usable.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("token", "counts"), [(0, True), (4, True), (5, False), (-1, False), (1.5, False)]
)
def test_a_record_of_tokens_counts_if_each_is_in_the_vocabulary(token: Any, counts: bool) -> None:
    form = Form((2,), "tokens", 5)
    alone = read("own", [([[0, 1, 4], [3, 2, token]], None)], form)
    assert alone.usable is not None
    assert alone.usable.tolist() == [True, counts]
    assert alone.x.tolist() == [[0, 1], [3, 2] if counts else [0, 0]]
    assert alone.y.tolist() == [[1, 4], [2, token] if counts else [0, 0]]


@pytest.mark.parametrize(
    ("form", "least", "most"),
    [
        (Form((2,), "class", 5), 0, 4),
        (Form((2,), "tokens", 5, (2,)), IGNORED, 4),
        (Form((2,), "bits", 2), 0, 1),
    ],
)
def test_a_target_counts_up_to_both_ends_of_its_range(form: Form, least: int, most: int) -> None:
    values = [least, most, most + 1, least - 1]
    y = values if form.targets == "class" else [[1, value] for value in values]
    found = read("own", [(np.ones((4, 2)), y)], form)
    assert found.usable is not None
    assert found.usable.tolist() == [True, True, False, False]


def test_no_infinite_number_is_a_whole_number() -> None:
    for kind in (np.float16, np.float32, np.float64):
        x = np.array([[1, 2], [np.inf, 0], [-np.inf, 0]], kind)
        found = read("own", [(x, [0, 1, 2])], Form((2,), "class", 3, whole=True))
        assert found.usable is not None
        assert found.usable.tolist() == [True, False, False]


def test_own_targets_of_two_shapes_are_one_sentence() -> None:
    """Records that are read together are refused in the same way."""
    form = Form((2,), "own", 1, (3,))
    parts = [(np.ones((2, 2)), np.ones((2, width))) for width in (3, 4)]
    with pytest.raises(DataInvalid, match=r"^data n: clients' parts do not fit together: "):
        read("n", parts, form)


class Panic(BaseException):
    """A panic of a library written in Rust is no `Exception` either."""


class Raising:
    """A record whose own code raises. It may stand for an item, for its x or for its y."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.error

    def __iter__(self) -> Any:
        raise self.error


class Items:
    """A map-style Dataset of four items. Reading the second raises, or yields `odd`."""

    def __init__(self, odd: Any) -> None:
        self.odd = odd

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index != 1:
            return np.float32([index, 0.5]), index % 3
        if isinstance(self.odd, BaseException):
            raise self.odd
        return self.odd


@pytest.mark.parametrize("error", [ValueError("4711"), SystemExit(3), Panic("4711")])
def test_a_record_that_ends_the_process_or_panics_counts_for_nothing_alone(
    error: BaseException,
) -> None:
    raising, fine = Raising(error), np.float32([1, 0.5])
    for odd in (error, raising, (raising, 1), (fine, raising)):
        found = read("own", [items(Items(odd))], Form((2,), "class", 3))
        assert found.usable is not None
        assert found.usable.tolist() == [True, False, True, True]
        assert found.x.tolist() == [[0, 0.5], [0, 0], [2, 0.5], [3, 0.5]]
        assert found.y.tolist() == [0, 0, 2, 0]


def test_an_interruption_while_a_record_is_read_ends_the_reading() -> None:
    for odd in (KeyboardInterrupt(), (Raising(KeyboardInterrupt()), 1)):
        with pytest.raises(KeyboardInterrupt):
            read("own", [items(Items(odd))], Form((2,), "class", 3))


def test_tensors_that_training_made_are_numbers_together_or_one_by_one() -> None:
    torch = pytest.importorskip("torch")
    made = torch.tensor([[1.5, -2.0], [0.25, 4.0]], requires_grad=True)
    for x in (made, [made[0], made[1]]):
        found = read("own", [(x, [2, 1])], Form((2,), "class", 3))
        assert found.usable is not None
        assert found.usable.all()
        assert found.x.tolist() == [[1.5, -2.0], [0.25, 4.0]]


@pytest.mark.parametrize(
    ("form", "odd"),
    [
        (Form((2,), "tokens", 5, (2,)), [1, 1.5]), (Form((2,), "tokens", 5, (2,)), [np.inf, 1]),
        (Form((2,), "bits", 2), [np.nan, 1]), (Form((2,), "bits", 2), [np.inf, 1]),
        (Form((2,), "numbers", 2), [1e39, 1]),
    ],
)  # fmt: skip
def test_a_target_that_is_no_number_of_its_kind_counts_for_nothing(form: Form, odd: Any) -> None:
    found = read("own", [(np.ones((3, 2)), [[1, 0], odd, [0, 1]])], form)
    assert found.usable is not None
    assert found.usable.tolist() == [True, False, True]
    assert found.y.tolist() == [[1, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("kind", "whole", "read_as"),
    [("int8", False, "int8"), ("uint16", True, "uint16"), ("int32", False, "float32"),
     ("int32", True, "int64"), ("float16", False, "float32")],
)  # fmt: skip
def test_only_small_whole_numbers_keep_their_type(kind: str, whole: bool, read_as: str) -> None:
    x = np.array([[1, 2], [3, 4]], kind)
    assert read("own", [(x, [0, 1])], Form((2,), "class", 3, whole=whole)).x.dtype == read_as


@pytest.mark.parametrize(
    ("form", "x", "y", "said"),
    [
        (Form((0,), "class", 3), np.ones((2, 0)), [0, 1], r"shape \(2, 0\), but \[examples, ...\]"),
        (Form((2, 3), "tokens", 9), np.ones((4, 2, 4), int), None, "are not sequences of tokens"),
    ],
)
def test_records_without_numbers_or_of_no_sequence_are_one_sentence(
    form: Form, x: Any, y: Any, said: str
) -> None:
    with pytest.raises(DataInvalid, match=said):
        read("own", [(x, y)], form)

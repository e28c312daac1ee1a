"""Arrays that are converted in place, part by part."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.base import array_types, two_threads
from fedveil.base.array_types import are_distinct, into_floats, row_values, utf8, without_na


@pytest.mark.parametrize("long", [1, 1 << 22])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 9])
def test_every_number_becomes_a_float(
    length: int, dtype: type, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_types, "_PART", 4)
    monkeypatch.setattr(two_threads, "_LONG", long)
    for scale in ((), (3.0, 8.0), (3.0, 7.0)):
        numbers = np.arange(7, 7 + length, dtype=dtype)
        unit, divisor = scale or (1.0, 1.0)
        expected = [float(number) * unit / divisor for number in numbers]
        floats = into_floats(numbers, *scale)
        assert floats.dtype == np.float64
        assert floats.tolist() == expected


@pytest.mark.parametrize("ids", [["b", "a", "ba", "ab", "", "\U0001f600"], ["x" * 40, "y" * 39]])
def test_ids_are_distinct_unless_one_occurs_twice(
    ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for odd in (array_types._ODD, np.uint64(1)):  # with 1, the sum of the letters is the key
        monkeypatch.setattr(array_types, "_ODD", odd)
        assert are_distinct(np.array(ids))
        assert are_distinct(np.array(ids * 2)[::2][: len(ids) // 2])
        assert not are_distinct(np.array([*ids, ids[1]]))
    assert are_distinct(np.array([], np.str_))
    assert are_distinct(np.array([3, -1]))
    assert not are_distinct(np.array([3, -1, 3]))
    rows = np.arange(1, 25, dtype=np.uint8).reshape(3, 8)[:, ::3]
    assert row_values(rows).tolist() == [bytes(row) for row in rows.tolist()]


def test_texts_are_encoded_even_if_there_are_none() -> None:
    assert utf8(np.array([], np.str_)) == []
    assert utf8(np.array(["a", "\x7f"])) == [b"a", b"\x7f"]
    assert utf8(np.array(["a", "\x80"])) == [b"a", b"\xc2\x80"]


class NAType:
    """Stands for the type of pandas.NA."""


def test_each_missing_cell_is_replaced_and_no_other() -> None:
    cells = np.array([NAType(), "NA", None], object)
    assert without_na(cells, 7).tolist() == [7, "NA", None]
    whole = cells[1:]
    assert without_na(whole, 7) is whole
    numbers = np.array([1.5, 2.5])
    assert without_na(numbers, 7) is numbers

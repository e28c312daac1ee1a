"""Cells of a CSV file as native code reads them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.tasks.tables import csv_block, native_cells
from fedveil.tasks.tables.cell_forms import FORMS
from fedveil.tasks.tables.csv_block import CsvBlock, read
from fedveil.tasks.tables.csv_format import CsvFormat

pytest.importorskip("numba")

digits = st.text("0123456789", min_size=1, max_size=19)
written = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.tuples(digits, digits, st.integers(-70, 70)).map(lambda n: f"{n[0]}.{n[1]}e{n[2]}"),
    st.tuples(st.integers(2**53, 2**64), st.sampled_from(["", ".0", "00", ".5"])).map(
        lambda halfway: f"{halfway[0]}{halfway[1]}"
    ),
)


def block_of(cells: list[str]) -> CsvBlock:
    """Return the column x of a file with these cells."""
    text = "".join(f"{cell},k{row}\n" for row, cell in enumerate(cells))
    found = read(CsvFormat("t.csv", "utf-8-sig", ",", None), ["x", "id"], ["id", "x"], text)
    assert found is not None
    return found


@settings(max_examples=80, deadline=None)
@given(st.lists(written, min_size=1, max_size=30))
def test_a_number_is_the_nearest_to_what_is_written(cells: list[str]) -> None:
    """The reference is Python's own reader, which rounds correctly."""
    cells = [*cells, "9007199254740993.0", "-4503599627370497.5", "0.1", "1e22", "8.5e23"]
    found = block_of(cells).numbers("x", ["point"])
    assert found is not None
    assert found.values.tolist() == [float(cell) for cell in cells]


def test_a_number_at_the_end_of_the_file_has_no_further_digits() -> None:
    for cell in ("7", "1234567", "12345678", "123456789.25"):
        found = read(CsvFormat("t.csv", "utf-8-sig", ",", None), ["id", "x"], ["x"], f"k,{cell}")
        assert found is not None
        numbers = found.numbers("x", ["point"])
        assert numbers is not None
        assert numbers.values.tolist() == [float(cell)]


def test_most_numbers_are_read_in_native_code() -> None:
    draw = np.random.default_rng(3)
    cells = [repr(n) for n in draw.normal(0, 1e-3, 50).tolist()] + [
        repr(n) for n in draw.lognormal(5, 9, 50).tolist()
    ]
    block = block_of([*cells, "0.0012750739802463253", "1e-300"])
    _values, odd, noted = block._read("numbers", "x")
    assert odd.tolist() == [101]
    assert noted == native_cells.POINT | native_cells.SURE_POINT | native_cells.NOT_BINARY


def test_dates_are_days_of_the_calendar() -> None:
    days = np.arange(-719_162, 2_932_897, 1_499)
    cells = [str(day) for day in days.astype("datetime64[D]")]
    found = block_of([*cells, "", "2024-2-9", "NA"]).dates("x")
    assert found is not None
    assert found[:-3].tolist() == days.tolist()
    assert math.isnan(found[-3])
    assert found[-2] == FORMS["iso"]("2024-02-09")
    for wrong in (
        "2023-02-29",
        "1900-02-29",
        "0000-01-01",
        "2024-04-31",
        "2024-13-01",
        "2024-00-1x",
    ):
        assert block_of([*cells[:30], wrong]).dates("x") is None


def test_distinct_texts_are_numbered_in_their_order() -> None:
    cells = ["é", "b", " b", "", "é", "b" * 40, "b", "b" * 39 + "c"]
    codes, words = block_of(cells).coded("x")
    assert words == ["é", "b", "b", "", "b" * 40, "b" * 39 + "c"]
    assert codes.tolist() == [0, 1, 2, 3, 0, 4, 1, 5]


def test_a_text_is_another_than_those_that_begin_with_it() -> None:
    """Some of them meet in the table of hashes."""
    cells = [f"{'a' * 20}{row}" for row in range(500)] + ["a" * length for length in range(1, 21)]
    codes, words = block_of(cells).coded("x")
    assert (codes.tolist(), words) == ([*range(520)], cells)


def test_after_the_letters_of_an_id_comes_nothing() -> None:
    """Whatever the memory had in it before."""
    block, texts = block_of(["a", "bcdef", "gh"]), np.full((3, 5), 7, np.uint32)
    assert native_cells.letters(block._block, block._cells[1], csv_block._PLAIN, texts)
    assert texts.view("U5")[:, 0].tolist() == ["a", "bcdef", "gh"]


def test_texts_with_equal_hashes_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play a file that is made so that every comparison fails, which would take hours."""
    block = block_of([f"{row}" for row in range(90)])
    monkeypatch.setattr(native_cells, "distinct", lambda *given: -1)
    codes, words = block.coded("x")
    assert [words[code] for code in codes] == [f"{row}" for row in range(90)]


def test_an_exponent_of_many_digits_is_left_to_python() -> None:
    """The second exponent is 1 if only its last 64 bits are kept."""
    _values, odd, _noted = block_of(["3e1", f"3e{2**64 + 1}", "3e-00001"])._read("numbers", "x")
    assert odd.tolist() == [1, 2]


@pytest.mark.parametrize("cell", ["0.1", "00", "+1", "-1", "2"])
def test_a_column_is_binary_only_if_each_cell_is_0_or_1(cell: str) -> None:
    for cells, flag in ((["1", "0"], 0), (["1", cell, "0"], native_cells.NOT_BINARY)):
        _values, odd, noted = block_of(cells)._read("numbers", "x")
        assert (odd.tolist(), noted & native_cells.NOT_BINARY) == ([], flag)


@pytest.mark.parametrize("mark", [".", ","])
def test_zeros_before_the_first_digit_do_not_count_as_digits(mark: str) -> None:
    text = f"0{mark}{'0' * 22}25;k\n"
    block = read(CsvFormat("t.csv", "utf-8-sig", ";", None), ["x", "id"], ["id", "x"], text)
    assert block is not None
    values, odd, _noted = block._read("numbers", "x")
    assert (values.tolist(), odd.tolist()) == ([2.5e-23], [])

"""Under `unit: row` one row, whatever it is, moves a client's vector by its stated distance."""

from __future__ import annotations

import csv
import datetime
import logging
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.base.array_types import Float32s
from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid
from fedveil.statistics.carriage import Carriage, Participants, make_protection
from fedveil.statistics.clients import Clients, clients_of, load
from fedveil.statistics.plan import Layout
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import Schedule
from fedveil.statistics.simulation import Contributions
from fedveil.statistics.tables import as_table

ROWS, WHERE = 40, 7
DAY = datetime.datetime(2024, 1, 31)
QUESTIONS: dict[str, Any] = {
    "old": {"ask": "count", "where": "age >= 40"},
    "age": {"ask": "mean", "column": "age", "range": [0, 100]},
    "sex": {"ask": "histogram", "column": "sex", "categories": ["f", "m"]},
    "day": {"ask": "count", "where": "day == '2024-01-31'"},
}
ODD: list[tuple[str, Any]] = [
    *(("age", cell) for cell in ("abc", None, math.nan, -math.inf, 1e308, 10**400, [1, 2], "1,5")),
    *(("age", cell) for cell in (True, 2.5, np.float32(0.1), object())),
    *(("sex", cell) for cell in (None, 3, math.nan, ["f"], b"f", "f" * 999, True)),
    *(("day", cell) for cell in (DAY.replace(hour=12), None, "abc", DAY.date(), 7)),
]


def columns(**odd: Any) -> dict[str, Any]:
    found = {"age": [*range(20, 20 + ROWS)], "sex": ["f", "m"] * (ROWS // 2), "day": [DAY] * ROWS}
    for column, cell in odd.items():
        found[column][WHERE] = cell
    return found


def file_of(**more: Any) -> QuestionFile:
    return QuestionFile.read(
        {"protection": "dp_encrypt", "epsilon": 1.0, "unit": "row", "questions": QUESTIONS, **more},
        [],
    )


@cache
def asked() -> tuple[Layout, Carriage]:
    file = file_of()
    schedule = Schedule(file)
    step = schedule.next(0)
    assert step is not None
    layout = schedule.layout(step)
    protection = make_protection(file, layout.dimension, schedule.rounds, Participants(5))
    return layout, Carriage(protection)


def vector(data: Any) -> Float32s:
    """Return the update of a client that has all rows, as it goes into the protection."""
    table = load(file_of(), data).table
    mine = Clients(table, np.arange(len(table)), np.array([0, len(table)]), None)
    layout, carriage = asked()
    return Contributions(layout, mine, carriage, Seeded(3)).of(0)


def framed(data: dict[str, Any]) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({name: pandas.Series(cells) for name, cells in data.items()})


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("make", [dict, framed], ids=["lists", "frame"])
def test_one_row_moves_a_vector_by_no_more_than_its_distance(make: Any) -> None:
    whole = vector(make(columns()))
    assert np.linalg.norm(whole) > 10
    for column, cell in ODD:
        found = vector(make(columns(**{column: cell})))
        assert np.linalg.norm(found.astype(np.float64) - whole) <= 2, (column, cell)


def text_of(data: dict[str, Any], cell: str = "20") -> str:
    lines = [f"{age},{sex},2024-01-31" for age, sex, _ in zip(*data.values(), strict=True)]
    lines[WHERE] = f"{cell},f,2024-01-31"
    return "\n".join(["age,sex,day", *lines])


def test_a_line_of_a_file_that_cannot_be_read_moves_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text_of(columns()))
    whole = vector(str(path))
    long = "9" * (csv.field_size_limit() + 1)
    for cell in ("abc", "inf", "1e999", "1,5", "", "2024-02-30", long):
        path.write_text(text_of(columns(), cell))
        caplog.clear()
        with caplog.at_level(logging.INFO, "fedveil.client"):
            found = vector(str(path))
        assert np.linalg.norm(found.astype(np.float64) - whole) <= 2, cell[:9]
        assert not cell or "1 cells or rows" in caplog.text


def test_without_a_guarantee_for_a_row_its_cell_is_an_error() -> None:
    for more in ({"unit": "client"}, {"protection": "not_encrypt", "epsilon": None}):
        with pytest.raises(DataInvalid, match="row 8: age = 'abc' is not a finite number"):
            load(file_of(**more), columns(age="abc"))
        with pytest.raises(DataInvalid, match="'age' is not a list of numbers or texts"):
            load(file_of(**more), columns(age=[1, 2]))


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"age;sex;day\n1,5;f;2024-01-31\n", "separated by semicolon"),
        ("age,sex,day\n1,f,2024-01-31\n".encode("utf-16"), "UTF-16 text"),
    ],
)
def test_the_header_of_another_format_is_one_sentence(
    tmp_path: Path, content: bytes, shown: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(DataInvalid, match=f"is {shown}, but .* guesses no format; save it with"):
        vector(str(path))
    assert len(as_table(str(path))) == 1


#: Columns whose format fedveil would have to guess, if it guessed any.
GUESSED = {
    "age": ["1.234", "20.345", "3.456"], "day": ["2024-01-31", "2024-02-01", "2024-02-02"],
    "well": ["yes", "no", "yes"], "at": ["23:59", "00:30", "12:00"], "note": ["a", "b", "c"],
}  # fmt: skip
GUESSES: list[bytes] = [
    b'"1,5"', b'"1,234"', b"1.5", b"0", b"1", b"yes", b"maybe", b"01/02/2024", b"31/01/2024",
    b"31.01.2024", b"2024-01-31", b"23:59", b"1 000", b'"unclosed', b'x"y', b'"a\nb"', b'"a\n',
    b"\xe9", b"1;5;6;7;8", b"1\t2", b"nan", b"1e999", b"", b"1,2", b"\x00", b"\r",
]  # fmt: skip


def readings(path: Path, columns: dict[str, list[bytes]]) -> dict[tuple[str, str], list[Any]]:
    """Write the columns as CSV, and return each as it is read: as numbers, and as words."""
    rows = [b",".join(cells) for cells in zip(*columns.values(), strict=True)]
    path.write_bytes(b"\n".join([",".join(columns).encode(), *rows]) + b"\n")
    table = as_table(str(path), apart=True)
    numbers = {("numbers", name): table.numbers(name).tolist() for name in [*columns][:-1]}
    return numbers | {("words", name): table.words(name).tolist() for name in columns}


@pytest.mark.parametrize("odd", GUESSES)
@pytest.mark.parametrize("rows", [3, 50])
def test_no_cell_decides_how_the_rows_of_a_file_are_read(
    tmp_path: Path, odd: bytes, rows: int
) -> None:
    path = tmp_path / "rows.csv"
    whole = {
        name: [cell.encode() for cell in cells * rows][:rows] for name, cells in GUESSED.items()
    }
    others = readings(path, {name: cells[:1] + cells[2:] for name, cells in whole.items()})
    for column, cells in whole.items():
        found = readings(path, {**whole, column: [cells[0], odd, *cells[2:]]})
        for key, expected in others.items():
            left = len(found[key]) - len(expected)  # the odd row is read or left out
            assert left in (0, 1), (column, key)
            assert found[key][:1] + found[key][1 + left :] == expected, (column, key)


def test_cells_of_any_kind_are_read_cell_by_cell(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    cells = ["1.5", "1 000", "2024-01-31", "18:00", "yes", "0", '"1,5"', "31.01.2024", "NA"]
    path.write_text("\n".join(["x,y", *(f"{cell},1" for cell in cells)]))
    found = as_table(str(path), apart=True).numbers("x").tolist()
    assert found[:6] == [1.5, 1000, 19753, 0.75, 1, 0]
    assert np.isnan(found[6:]).all()


@pytest.mark.parametrize("odd", [7, 2.5, np.float32(1), DAY.replace(hour=3), None])
@pytest.mark.parametrize("cell", [True, 10**17 + 1, 2.0, np.float32(0.1), DAY])
def test_a_cell_of_another_type_changes_no_other_word(cell: Any, odd: Any) -> None:
    alike = as_table({"x": [cell] * 3}).words("x").tolist()
    mixed = as_table({"x": [cell, odd, cell]}).words("x").tolist()
    assert alike[::2] == mixed[::2]


SECOND = np.datetime64("2024-01-31T12:30:00")
#: Lists whose cells NumPy would read by the type of one of them.
ALIKE: list[list[Any]] = [
    [b"f\0", b"m", b"f"], [2**53 + 1, -1, 5], [SECOND, SECOND, SECOND], ["f\0", "m", "f"],
    [np.datetime64("1200-01-31"), SECOND, SECOND], [True, False, True], [0.5, 2.0, 3.0],
]  # fmt: skip
OTHERS: list[Any] = [
    None, "x", "x" * 999, b"f", 2**63, 10**5000, math.nan, True, 2.5, [1, 2], SECOND, object(),
    np.datetime64("2262-01-01T00:00:00.000000001"), np.datetime64("NaT"), np.array([1, 2]),
    np.datetime64(2**62, "as"),
]  # fmt: skip


class OddText(str):
    def __str__(self) -> str:
        return self

    def strip(self, *_: Any) -> Any:
        return 5


class OddBytes(bytes):
    def __new__(cls) -> OddBytes:
        return super().__new__(cls, b"q")

    def decode(self, *_: Any) -> str:
        raise RuntimeError("4711")


class NoClass:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("4711")

    def __len__(self) -> int:
        raise RuntimeError("4711")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("4711")


def made(odd: Any) -> Any:
    """Return an object in place of its class. pytest calls the methods of its parameters."""
    return odd() if isinstance(odd, type) else odd


@pytest.mark.parametrize("odd", [OddText(" q "), OddBytes, NoClass, OTHERS[-1]])
def test_a_cell_whose_own_code_fails_is_missing_and_changes_no_other(odd: Any) -> None:
    cells = np.array(["3", None, "5"], object)
    cells[1] = made(odd)
    for column in (cells, [*cells]):
        table = as_table({"x": column}, apart=True)
        assert table.words("x")[::2].tolist() == ["3", "5"]
        assert table.numbers("x")[::2].tolist() == [3, 5]
        assert np.isnan(table.numbers("x")[1])


@pytest.mark.parametrize("odd", [3 + 1j, 3 + 0j, complex(math.nan, 1), complex(2, math.nan)])
def test_a_complex_cell_makes_no_other_cell_complex(odd: complex) -> None:
    """NumPy and pandas choose the type of a whole array by this one cell."""
    cells, rows = np.array([2.5, 7, odd]), np.array([[2.5, 1], [7, 1], [odd, 1]])
    assert cells.dtype.kind == rows.dtype.kind == "c"
    for column, data in (("x", {"x": cells}), ("0", rows), ("0", (rows, [0, 1, 0]))):
        table = as_table(data, apart=True)
        assert table.numbers(column)[:2].tolist() == [2.5, 7]
        assert table.words(column)[:2].tolist() == ["2.5", "7"]
        expected = 3.0 if odd == 3 else math.nan
        assert table.numbers(column)[2:].tolist() == pytest.approx([expected], nan_ok=True)
    whole = {**columns(), "age": np.linspace(20.5, 77, ROWS)}
    one = [*whole["age"][:WHERE], odd, *whole["age"][WHERE + 1 :]]
    found = vector({**whole, "age": np.array(one)})
    assert found.tobytes() == vector({**whole, "age": one}).tobytes()
    assert np.linalg.norm(found.astype(np.float64) - vector(whole)) <= 2


def test_an_unreadable_cell_is_one_sentence_without_a_guarantee_for_a_row() -> None:
    with pytest.raises(DataInvalid, match="row 2: x holds a value of type datetime64 that cannot"):
        as_table({"x": ["3", OTHERS[-1]]}).words("x")


@pytest.mark.parametrize(
    "odd", [[4], [4, 5, 6], [], None, "ab", [[4, 5], [6, 7]], {"a": 1, "b": 2}, 7, NoClass]
)
def test_a_row_of_another_form_is_missing_and_moves_no_other(odd: Any) -> None:
    odd = made(odd)
    plain = [[1, "f"], (2, "m"), np.array([3, "f"], object)]
    for rows in ([*plain, odd], [odd, *plain]):
        here = slice(0, 3) if rows[-1] is odd else slice(1, 4)
        for data in (rows, (rows, [0, 1, 0, 1])):
            table = as_table(data, apart=True)
            assert len(table) == 4
            assert table.numbers("0")[here].tolist() == [1, 2, 3]
            assert table.words("1")[here].tolist() == ["f", "m", "f"]
            assert sum(word == "" for word in table.words("1")) == 1
        with pytest.raises((DataInvalid, RuntimeError)):
            as_table(rows).numbers("1")


@pytest.mark.parametrize("cells", [[3, NoClass()], [np.zeros((2, 2)), np.zeros((2, 3))]])
def test_a_row_whose_cell_raises_is_missing_and_moves_no_other(cells: list[Any]) -> None:
    table = as_table([[1, "f"], cells, [2, "m"]], apart=True)
    assert table.words("1").tolist() == ["f", "", "m"]


def test_examples_that_are_single_numbers_are_rows_of_one_cell() -> None:
    table = as_table(([4, [5], 6], ["u", "v", "w"]), apart=True)
    assert table.numbers("0")[::2].tolist() == [4, 6]
    assert table.words("y").tolist() == ["u", "v", "w"]


@pytest.mark.parametrize("odd", ["", None, math.nan, NoClass])
def test_a_row_without_a_client_is_left_out_of_all_clients(
    odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = {"who": ["b", made(odd), "a", "b"], "age": [1, 2, 3, 4]}
    with caplog.at_level(logging.INFO, "fedveil.client"):
        clients = clients_of(as_table(data, "t", apart=True), "who", None)
    mine = [clients.contributed(client, Seeded(1)).tolist() for client in range(len(clients))]
    assert mine == [[2], [0, 3]]
    assert "t, row 2: who is empty, so the row has no client; 1 such rows" in caplog.text
    with pytest.raises(DataInvalid, match="row 1: who is empty"):
        clients_of(as_table({"who": ["", None]}, apart=True), "who", None)


def read(data: Any) -> list[list[str]]:
    """Return the first two cells of the first column, as numbers and as words."""
    table = as_table(data, apart=True)
    first = table.columns[0]
    return [[str(cell) for cell in read(first)[:2]] for read in (table.numbers, table.words)]


@pytest.mark.parametrize("cells", ALIKE, ids=lambda cells: repr(cells[0]))
def test_no_cell_of_a_list_changes_how_another_is_read(cells: list[Any]) -> None:
    alone = read({"x": cells})
    rows = read([[cell, 1] for cell in cells])
    pair = read(([[cell] for cell in cells], [0, 1, 2]))
    for other in OTHERS:
        assert read({"x": [*cells[:2], other]}) == alone, other
        assert read({"x": (*cells[:2], other)}) == alone, other
        if not isinstance(other, list | np.ndarray):  # rows must have one length
            assert read([*([cell, 1] for cell in cells[:2]), [other, 2.5]]) == rows, other
            assert read(([*([cell] for cell in cells[:2]), [other]], [0, 1, 2])) == pair, other


def test_bytes_and_dates_in_a_list_have_the_words_of_an_array() -> None:
    for cells, words in (
        ([b"f", "\u00e9".encode(), b"\xff"], ["f", "\u00e9", "\\xff"]),
        ([SECOND, np.datetime64("2024-02-01"), np.datetime64("NaT")],
         ["2024-01-31 12:30:00", "2024-02-01", ""]),
    ):  # fmt: skip
        assert as_table({"x": cells}).words("x").tolist() == words
        assert as_table({"x": np.array(cells)}).words("x").tolist() == words
        assert as_table({"x": np.array(cells, object)}).words("x").tolist() == words


def test_a_targets_list_is_read_cell_by_cell() -> None:
    for other in (None, 2.5, "x"):
        words = as_table(([[1], [2]], [b"f", other]), apart=True).words("y")
        assert words[0] == "f"


def test_a_number_that_python_does_not_write_is_an_error_or_missing() -> None:
    data = {"x": [1, 10**5000]}
    for column in ("numbers", "words"):
        with pytest.raises(DataInvalid, match="row 2: x holds a value of type int that cannot be"):
            getattr(as_table(data), column)("x")
    assert np.isnan(as_table(data, apart=True).numbers("x")).tolist() == [False, True]
    assert as_table(data, apart=True).words("x").tolist() == ["1", ""]

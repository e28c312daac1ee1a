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
from fedveil.statistics.clients import Clients, load
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


def test_a_file_with_two_readings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("age;sex;day\n1,234;f;2024-01-31\n2,345;m;2024-01-31\n")
    with pytest.raises(DataInvalid, match="has two readings"):
        vector(str(path))


@pytest.mark.parametrize("odd", [7, 2.5, np.float32(1), DAY.replace(hour=3), None])
@pytest.mark.parametrize("cell", [True, 10**17 + 1, 2.0, np.float32(0.1), DAY])
def test_a_cell_of_another_type_changes_no_other_word(cell: Any, odd: Any) -> None:
    alike = as_table({"x": [cell] * 3}).words("x").tolist()
    mixed = as_table({"x": [cell, odd, cell]}).words("x").tolist()
    assert alike[::2] == mixed[::2]

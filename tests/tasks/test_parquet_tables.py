"""Tables as Parquet: what is read is what the same table as CSV gives."""

from __future__ import annotations

import csv
import decimal
import sys
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.errors import DataInvalid, DataUnavailable, MissingExtra
from fedveil.tasks.tables import parquet_file
from fedveil.tasks.tables.parquet_file import _AT_ONCE
from fedveil.tasks.tables.table_file import Wanted, header, read
from fedveil.vertical.task_settings import ReadingSettings


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, **columns: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns), path)


def test_it_is_the_table_that_its_csv_is() -> None:
    rows = _AT_ONCE + 5
    ids = [f"P{i}" for i in range(rows)]
    small, real = [i % 200 for i in range(rows)], [i / 7 for i in range(rows)]
    words = [(" Oslo", "Bern ", "Rome")[i % 3] for i in range(rows)]
    columns = {"id": ids, "small": small, "real": real, "city": words, "branch": small}
    write("t.parquet", **columns)
    with Path("t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    wanted = Wanted("id", ("small", "real"), ("city", "branch"))
    one, other = read("t.parquet", wanted), read("t.csv", wanted)
    assert header("t.parquet") == header("t.csv")
    assert one.ids.tolist() == other.ids.tolist()
    assert one.known == other.known
    for name in wanted.numbers:
        np.testing.assert_array_equal(one.numbers(name), other.numbers(name))
    for name in wanted.words:
        np.testing.assert_array_equal(one.codes(name), other.codes(name))
    assert one.place(rows - 1) == f"t.parquet, row {rows}"


def test_ids_may_be_numbers_and_cells_may_lack() -> None:
    arrow = pytest.importorskip("pyarrow")
    city = arrow.array(["Oslo", None, "Oslo"]).dictionary_encode()
    owed = arrow.array([decimal.Decimal("1.25"), None, decimal.Decimal("2.50")])
    write("t.parquet", id=[7, 8, 9], x=[1.0, None, float("nan")], city=city, owed=owed)
    table = read("t.parquet", Wanted("id", ("x", "owed"), ("city",), ("x", "owed", "city")))
    assert table.ids.tolist() == ["7", "8", "9"]
    np.testing.assert_array_equal(table.numbers("x"), [1, np.nan, np.nan])
    np.testing.assert_array_equal(table.numbers("owed"), [1.25, np.nan, 2.5])
    assert [table.known["city"][code] for code in table.codes("city")] == ["Oslo", "", "Oslo"]


def test_a_column_of_128_texts_that_pandas_calls_categories_may_lack_cells() -> None:
    arrow = pytest.importorskip("pyarrow")
    words, codes = [f"w{i}" for i in range(128)], [*range(128), None]
    small = arrow.DictionaryArray.from_arrays(arrow.array(codes, arrow.int8()), words)
    write("t.parquet", id=list(range(129)), city=small)
    table = read("t.parquet", Wanted("id", words=("city",), may_lack=("city",)))
    assert [table.known["city"][code] for code in table.codes("city")] == [*words, ""]


def test_a_time_beyond_the_year_9999_is_one_sentence_where_it_is_read_as_text() -> None:
    arrow = pytest.importorskip("pyarrow")
    write("t.parquet", id=["a"], x=arrow.array([10**12], arrow.timestamp("s")))
    with pytest.raises(DataInvalid, match=r"^t\.parquet cannot be read as Parquet: "):
        read("t.parquet", Wanted("id", ("x",), reading=ReadingSettings(empty=["-"])))


def test_numbers_may_be_dates_times_of_a_zone_truth_values_and_large_whole_numbers() -> None:
    """And a file may have one row alone, with texts of the large kind."""
    arrow = pytest.importorskip("pyarrow")
    noon = datetime(2024, 1, 2, 12, tzinfo=timezone(timedelta(hours=2)))
    write(
        "t.parquet", id=arrow.array(["a"], arrow.large_string()), day=[date(2024, 1, 2)],
        time=arrow.array([noon], arrow.timestamp("ms", "Europe/Rome")), yes=[True],
        plain=arrow.array([datetime(1969, 12, 31, 18)], arrow.timestamp("ns")), big=[2**53 + 1],
    )  # fmt: skip
    names = ("day", "time", "plain", "yes", "big")
    table = read("t.parquet", Wanted("id", names))
    assert table.ids.tolist() == ["a"]
    found = [table.numbers(name).item() for name in names]
    assert found == [19724, 19724 + 10 / 24, -0.25, 1, 2**53]
    assert table.place(0) == "t.parquet, row 1"


def test_what_was_learnt_of_parquet_scores_a_csv_and_the_other_way_round() -> None:
    arrow = pytest.importorskip("pyarrow")
    rows = _AT_ONCE + 2
    days = [None, *(date(2024, 1, 1 + i % 30) for i in range(rows - 1))]
    columns: dict[str, list[Any]] = {"id": list(range(rows)), "day": days}
    columns["yes"] = [i % 3 == 0 for i in range(rows)]
    columns["big"] = [i / 3 for i in range(rows)]
    write("t.parquet", **columns, coded=arrow.array(days).dictionary_encode())
    with Path("t.csv").open("w", newline="") as file:
        held = {**columns, "coded": days}
        csv.writer(file).writerows([held, *zip(*held.values(), strict=True)])
    names = ("day", "yes", "big", "coded")
    kinds = {"day": "date", "yes": "boolean", "big": "number", "coded": "date"}
    first = read("t.parquet", Wanted("id", names, (), names))
    assert first.kinds == kinds
    for path in ("t.parquet", "t.csv"):
        scored = read(path, Wanted("id", names, (), names, reading=ReadingSettings(kinds=kinds)))
        assert scored.kinds == kinds
        for name in names:
            np.testing.assert_array_equal(scored.numbers(name), first.numbers(name))
    asked = ReadingSettings(kinds={"day": "number", "yes": "number"})  # as an older run has it
    table = read("t.parquet", Wanted("id", names, (), names, reading=asked))
    np.testing.assert_array_equal(table.numbers("day"), first.numbers("day"))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"id": ["a", "b"], "x": [1.0, None]}, "t.parquet, row 2: x is empty"),
        ({"id": ["a", "b"], "x": [1.0, float("inf")]}, "t.parquet, row 2: x = 'inf' is not a f"),
        ({"id": ["a", "b"], "x": ["1", "old"]}, "t.parquet, row 2: x = 'old' is not a finite num"),
        ({"id": ["a", None], "x": [1, 2]}, "t.parquet, row 2: id is empty"),
        ({"id": ["a", "a"], "x": [1, 2]}, "t.parquet, row 2: the id 'a' is also in row 1, but ids"),
        ({"id": [1.5, 2.5], "x": [1, 2]}, "t.parquet: id is of type double, but a text or a whol"),
        ({"id": [1, 2], "x": [[1], [2]]}, "t.parquet: x is of type list<element: int64>, but a n"),
        ({"id": [1, 2], "y": [1, 2]}, "t.parquet has no column 'x', which the job names; its col"),
    ],
)
def test_what_is_no_table_is_one_sentence(columns: dict[str, Any], sentence: str) -> None:
    write("t.parquet", **columns)
    with pytest.raises(DataInvalid) as caught:
        read("t.parquet", Wanted("id", ("x",)))
    assert str(caught.value).startswith(sentence)


def test_what_is_no_parquet_is_one_sentence() -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table([[1], [2], [3]], names=["x", "id", "x"]), "t.parquet")
    with pytest.raises(DataInvalid, match=r"^t\.parquet: the column 'x' occurs twice$"):
        header("t.parquet")
    Path("t.parquet").write_text("id,x\n")
    with pytest.raises(DataInvalid, match=r"^t\.parquet cannot be read as Parquet: "):
        header("t.parquet")
    with pytest.raises(DataUnavailable, match=r"^gone\.parquet cannot be read: No such file"):
        header("gone.parquet")


@pytest.mark.parametrize("column", ["id", "x", "word"])
def test_texts_that_are_no_text_are_one_sentence(column: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    ends = pyarrow.py_buffer(np.arange(3, dtype=np.int32).tobytes())
    broken = pyarrow.StringArray.from_buffers(2, ends, pyarrow.py_buffer(b"\xff\xff"))
    write("t.parquet", **{"id": ["a", "b"], "x": ["1", "2"], "word": ["c", "d"], column: broken})
    with pytest.raises(DataInvalid, match=r"^t\.parquet cannot be read as Parquet: [^\n]*UTF8"):
        read("t.parquet", Wanted("id", ("x",), ("word",)))


def test_any_changed_byte_of_the_rows_is_a_table_or_one_sentence() -> None:
    """Without a check, pyarrow returns texts that the damaged file does not have."""
    pytest.importorskip("pyarrow")
    from pyarrow import parquet, table

    columns = {"id": ["a", "b", "c"], "x": ["1", "2", "2"], "word": ["c", "d", "c"]}
    parquet.write_table(table(columns), "t.parquet", compression="none", write_statistics=False)
    content = Path("t.parquet").read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    refusals = list[str]()
    for place in range(4, footer):
        changed = content[:place] + bytes([content[place] ^ 2]) + content[place + 1 :]
        Path("t.parquet").write_bytes(changed)
        try:
            assert len(read("t.parquet", Wanted("id", ("x",), ("word",)))) == 3
        except (DataInvalid, DataUnavailable) as error:
            refusals.append(str(error))
    assert footer / 2 < len(refusals) < footer
    assert [said for said in refusals if not said.startswith("t.parquet") or "\n" in said] == []


def test_a_parquet_file_that_changes_while_it_is_read_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write("t.parquet", id=["a", "b"], x=[1, 2])
    found = parquet_file.check_types

    def changed(*given: Any) -> None:
        found(*given)
        write("t.parquet", id=["a", "b"])

    monkeypatch.setattr(parquet_file, "check_types", changed)
    with pytest.raises(DataUnavailable, match="changed while fedveil was reading it"):
        read("t.parquet", Wanted("id", ("x",)))


def test_without_pyarrow_it_is_said_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"^t\.parquet needs the package pyarrow: pip install "):
        header("t.parquet")


def test_times_of_any_unit_and_year_are_days() -> None:
    """pandas writes nanoseconds, and the year 9999 often means that there is no end."""
    arrow = pytest.importorskip("pyarrow")
    ends, last = [date(9999, 12, 31), date(1, 1, 1)], 2_932_896 * 86400
    write(
        "t.parquet", id=["a", "b"], date=ends, day=arrow.array(ends, arrow.date64()),
        s=arrow.array([last, -1], arrow.timestamp("s")),
        ms=arrow.array([last * 1000, None], arrow.timestamp("ms")),
        us=arrow.array([last * 10**6, 1], arrow.timestamp("us", "Europe/Rome")),
        ns=arrow.array([1_500, 86_400_000_000_001], arrow.timestamp("ns")),
        again=arrow.array(ends).dictionary_encode(),
    )  # fmt: skip
    names = ("date", "day", "again", "s", "ms", "us", "ns")
    table = read("t.parquet", Wanted("id", names, (), names))
    found = {name: table.numbers(name).tolist() for name in names}
    assert found["date"] == found["day"] == found["again"] == [2_932_896, -719_162]
    assert found["s"] == [2_932_896, -1 / 86400]
    np.testing.assert_array_equal(found["ms"], [2_932_896, np.nan])
    assert found["us"] == [2_932_896, 1 / 86_400_000_000]
    assert found["ns"] == [1_500 / 86_400e9, 86_400_000_000_001 / 86_400e9]
    stated = ReadingSettings(kinds=dict.fromkeys(names, "date"))
    table = read("t.parquet", Wanted("id", names, (), names, reading=stated))
    assert set(table.kinds.values()) == {"date"}
    for name in names[:-1]:
        np.testing.assert_allclose(table.numbers(name), found[name], rtol=1e-9, atol=1e-12)
    # Texts of times have microseconds, whether pandas is installed or not.
    assert table.numbers("ns").tolist() == pytest.approx([1e-6 / 86400, 1], rel=1e-9)


@pytest.mark.parametrize("kind", ["float64", "float32", "int64", "decimal128"])
def test_a_number_that_means_an_empty_cell_is_one_whatever_its_type(kind: str) -> None:
    """A float's text is 9999.0, and 1.234 would be 1234 with decimal commas."""
    arrow = pytest.importorskip("pyarrow")
    made = arrow.decimal128(9, 3) if kind == "decimal128" else getattr(arrow, kind)()
    x = [1.234, 9999.0, 2.125, 0.1] if kind != "int64" else [1, 9999, 2, 3]
    cells = [decimal.Decimal(str(cell)) for cell in x] if kind == "decimal128" else x
    write("t.parquet", id=[7, 8, 9, 6], x=arrow.array(cells, made), comma=["1,5", "2,5", "-", "3"])
    for empty in (["-", "9999", "0.1"], ["-", "9999.0", "0.1"]):
        reading = ReadingSettings(empty=empty)
        wanted = Wanted("id", ("x", "comma"), may_lack=("x", "comma"), reading=reading)
        found = read("t.parquet", wanted).numbers("x")
        last = 3 if kind == "int64" else np.nan
        assert found.tolist() == pytest.approx([x[0], np.nan, x[2], last], rel=1e-6, nan_ok=True)


def test_texts_may_be_views() -> None:
    arrow = pytest.importorskip("pyarrow", "16")
    kind = arrow.string_view()
    columns = {"id": ["a", "b"], "x": ["1,5", "2"], "city": ["Oslo", None]}
    write("t.parquet", **{name: arrow.array(cells, kind) for name, cells in columns.items()})
    table = read("t.parquet", Wanted("id", ("x",), ("city",), ("city",)))
    assert (table.ids.tolist(), table.numbers("x").tolist()) == (["a", "b"], [1.5, 2.0])
    assert table.known == {"city": ["Oslo", ""]}


@pytest.mark.parametrize("kind", ["number", "date", "boolean", "day-first", "time"])
def test_a_stated_kind_that_a_columns_type_cannot_have_is_refused(kind: str) -> None:
    """Dates may be read as days, and truth values as 0 and 1, but as nothing else."""
    arrow = pytest.importorskip("pyarrow")
    write(
        "t.parquet", id=["a", "b"], b=[True, False],
        d=arrow.array([date(2024, 1, 31), date(2023, 5, 2)]),
    )  # fmt: skip
    for column, own, numbers in (("d", "date", [19753, 19479]), ("b", "boolean", [1, 0])):
        wanted = Wanted("id", (column,), reading=ReadingSettings(kinds={column: kind}))
        if kind in (own, "number"):
            table = read("t.parquet", wanted)
            assert (table.kinds, table.numbers(column).tolist()) == ({column: kind}, numbers)
            continue
        with pytest.raises(DataInvalid, match=f"row 1: {column} = .* is not a"):
            read("t.parquet", wanted)

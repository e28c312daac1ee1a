"""Tables that a stranger has made: wide, long, endless. What they take is bounded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.errors import DataInvalid, DataUnavailable
from fedveil.statistics.tables import as_table
from fedveil.tasks.tables import csv_block, csv_file
from fedveil.tasks.tables.csv_format import find_format
from fedveil.tasks.tables.id_column import MOST_ID_LETTERS
from fedveil.tasks.tables.own_tables import Tables
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_file import Wanted, header, read
from fedveil.vertical.task_settings import ReadingSettings, TablesSettings
from hostile_files import bounded


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_long_id_does_not_make_all_ids_long() -> None:
    """One id of 50,000 letters among 20,000 of five: as texts of one width they take 4 GB."""
    rows = [f"p{row:04d},{row}" for row in range(20_000)]
    Path("t.csv").write_text("\n".join(["id,x", *rows[:9_000], "L" * 50_000 + ",1", *rows[9_000:]]))
    with bounded(), pytest.raises(DataInvalid) as caught:
        read("t.csv", Wanted("id", ("x",)))
    assert str(caught.value).startswith("t.csv, line 9002: id = 'LLL")
    assert str(caught.value).endswith(" has 50,000 letters; an id has at most 256")


def test_an_id_may_have_as_many_letters_as_that() -> None:
    longest = "L" * MOST_ID_LETTERS
    Path("t.csv").write_text(f"id,x\na,1\n{longest},2\n")
    assert read("t.csv", Wanted("id", ("x",))).ids.tolist() == ["a", longest]


def test_an_id_with_a_nul_is_refused() -> None:
    Path("t.csv").write_text("id,x\na,1\na\0,2\n")
    with pytest.raises(
        DataInvalid, match=r"line 3: id = 'a.x00' contains a NUL character, which an id"
    ):
        read("t.csv", Wanted("id", ("x",)))


class Compared(str):
    """A column's name that counts how often names are compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__

    def strip(self, chars: str | None = None, /) -> Compared:
        return Compared(super().strip(chars))


@pytest.mark.parametrize("cell", ["3", '"3\n"'], ids=["in native code", "by Python"])
@pytest.mark.parametrize("missing", ["refuse", "mean"])
def test_a_columns_name_is_not_compared_with_all_others(
    missing: str, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20,000 columns that would be 200 million comparisons, many times over."""
    names = [f"c{number}" for number in range(1_000)]
    rows = [[str((row * 7 + at) % 5) for at in range(len(names))] for row in range(10)]
    rows[4][7] = cell
    lines = [",".join(["id", "label", *names])]
    lines += [",".join([f"p{at}", str(at % 2), *row]) for at, row in enumerate(rows)]
    Path("t.csv").write_text("\n".join(lines))
    table = {"path": "t.csv", "id": "id", "label": "label", "missing": missing}
    settings = {"files": {"leader": table}, "test_fraction": 0.4}
    found, before = csv_file._header, Compared.times
    monkeypatch.setattr(csv_file, "_header", lambda *a: [Compared(name) for name in found(*a)])
    task = Tables(TablesSettings.model_validate(settings))
    columns = [task.owned("leader", subset) for subset in ("train", "test")]
    assert sum(len(column) for column in columns) == 10
    assert columns[0].columns["numbers"].shape[1] == 1_000
    assert Compared.times - before < 100_000


def test_the_names_in_a_header_are_not_compared_with_each_other() -> None:
    names = [Compared(f"c{number}") for number in range(1_000)]
    before = Compared.times
    assert csv_file._header("t.csv", iter([names])) == names
    assert Compared.times - before < 10_000


def test_a_table_wider_than_any_is_refused() -> None:
    most = csv_file.MOST_COLUMNS
    Path("t.csv").write_text(",".join(f"c{number}" for number in range(most)) + "\n")
    assert len(header("t.csv")) == most
    with Path("t.csv").open("a") as file:
        file.seek(file.tell() - 1)
        file.truncate()
        file.write(",one more\n")
    with pytest.raises(DataInvalid, match="has 100,001 columns; the limit is 100,000: leave out "):
        header("t.csv")


def test_a_wide_tables_rows_are_taken_fewer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "_CELLS_AT_ONCE", 32)
    monkeypatch.setattr(csv_block, "read", lambda *given: None)
    Path("t.csv").write_text("id,x,y,z,w\n" + "".join(f"{row},1,2,3,4\n" for row in range(13)))

    def sizes() -> list[int]:
        pieces = csv_file.pieces(find_format("t.csv", ReadingSettings()), ["id"], Refusals(""))
        return [len(piece.places) for piece in pieces]

    assert sizes() == [6, 6, 1]
    monkeypatch.setattr(csv_file, "_CELLS_AT_ONCE", 1)
    assert sizes() == [1] * 13
    assert len(read("t.csv", Wanted("id"))) == 13


@pytest.mark.parametrize("begin", [b"", b"id,x\na,1\n"])
def test_a_line_without_an_end_is_refused(begin: bytes) -> None:
    """Play a file of gigabytes without a line end, which takes no room on the disk."""
    with Path("t.csv").open("wb") as file:
        file.write(begin)
        file.truncate(1 << 33)
    line = 1 + begin.count(b"\n")
    with bounded(), pytest.raises(DataInvalid) as caught:
        read("t.csv", Wanted("id", ("x",)))
    said = (
        f"t.csv: line {line} has more than 16,777,216 characters; a row of a table must have fewer"
    )
    assert str(caught.value) == said


@pytest.mark.parametrize("content", [b'id,x\na,"' + b"y" * 200_000, b"\x00"])
def test_other_content_that_is_no_table_is_refused(content: bytes) -> None:
    Path("t.csv").write_bytes(content)
    with pytest.raises(DataInvalid, match=r"^t\.csv"):
        read("t.csv", Wanted("id", ("x",)))


@pytest.mark.parametrize("as_dictionary", [True, False])
@pytest.mark.parametrize("column", ["id", "city", "x"])
def test_a_text_that_parquet_repeats_is_in_memory_once(column: str, as_dictionary: bool) -> None:
    """A file of less than 200 KB, whose column of equal texts would have 3 GB."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = 30_000
    long = arrow.array(["1" * 100_000])
    repeated = arrow.DictionaryArray.from_arrays(arrow.array([0] * rows, arrow.int32()), long)
    columns = {"id": list(range(rows)), "city": ["Oslo"] * rows, "x": [1.5] * rows}
    table = arrow.table({**columns, column: repeated})
    parquet.write_table(table, "t.parquet", store_schema=as_dictionary)
    assert Path("t.parquet").stat().st_size < 400_000
    with bounded():
        if column == "city":
            found = read("t.parquet", Wanted("id", ("x",), ("city",)))
            assert [len(word) for word in found.known["city"]] == [100_000]
            assert not found.codes("city").any()
            return
        with pytest.raises(DataInvalid) as caught:
            read("t.parquet", Wanted("id", ("x",), ("city",)))
    end = (
        "has 100,000 letters; an id has at most 256" if column == "id" else "is not a finite number"
    )
    assert str(caught.value).endswith(f"{end} (30,000 such cells, such as rows 2, 3)")


ROWS = "id,x,y\na,1,2\nb,3,4\nc,5,6\n"
OTHERS = {
    "without a column": "id,x\na,1\nb,3\nc,5\n",
    "with other columns": "id,y,x\na,2,1\nb,4,3\nc,6,5\n",
    "with another separator": ROWS.replace(",", ";"),
    "with a row less": ROWS[:-6],
    "empty": "",
}


def changing(
    monkeypatch: pytest.MonkeyPatch, path: str, time: int, change: Callable[[], None]
) -> int:
    """Read the table `path`, and call `change` when it is opened the `time`-th time.

    Returns how often the file was opened before the table was read.
    """
    opened, count = os.open, 0

    def opening(name: object, *flags: int) -> int:
        nonlocal count
        if str(name) == path:
            count += 1
            if count == time:
                change()
        return opened(name, *flags)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opening)
        table = read(path, Wanted("id", ("x", "y")))
    assert table.numbers("x").tolist() == [1, 3, 5]
    return count


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("replaced", [False, True], ids=["edited", "replaced"])
def test_a_file_that_changes_while_it_is_read_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, other: str, replaced: bool
) -> None:
    """Native code would read beyond its memory if a column that it expects were gone."""

    def change() -> None:
        if replaced:
            Path("new.csv").write_text(other)
            Path("new.csv").replace("t.csv")
        else:
            Path("t.csv").write_text(other)

    Path("t.csv").write_text(ROWS)
    times = changing(monkeypatch, "t.csv", 0, change)
    assert times > 2
    for time in range(1, times + 1):
        Path("t.csv").write_text(ROWS)
        with pytest.raises(
            DataUnavailable,
            match=r"^t\.csv cannot be read: it has changed while fedveil was reading it$",
        ):
            changing(monkeypatch, "t.csv", time, change)


def test_a_file_that_changes_between_two_columns_is_one_sentence() -> None:
    """A statistic reads each column by itself, so two columns would have different rows."""
    Path("t.csv").write_text(ROWS)
    table = as_table("t.csv")
    assert table.numbers("x").tolist() == [1, 3, 5]
    Path("t.csv").write_text("id,x,y\nc,5,6\nb,3,4\na,1,2\nd,7,8\n")
    with pytest.raises(DataUnavailable, match="changed while fedveil was reading it"):
        table.numbers("y")

"""Parties' own tables: what is read, what it becomes, what is held out, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import runpy
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from torch.nn import functional

import vertical_process
from fedveil.entropy import Seeded
from fedveil.errors import (
    DataInvalid,
    DataUnavailable,
    FedveilError,
    InvalidValue,
    JobError,
    RunFolderError,
)
from fedveil.link.own_authority import write_certificates
from fedveil.settings.differences import differences
from fedveil.tasks.tables import column_encoding, csv_format
from fedveil.tasks.tables.column_encoding import Classes, Encoding, Numbers, Scale, Words
from fedveil.tasks.tables.csv_file import _records
from fedveil.tasks.tables.csv_format import CsvFormat
from fedveil.tasks.tables.drift import Summary
from fedveil.tasks.tables.own_tables import Tables, held_out
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_file import Table, Wanted, header, read
from fedveil.tasks.wide_and_deep import Deep, Features, Wide
from fedveil.vertical import VerticalJob, evaluate, train
from fedveil.vertical.job_split import make_split
from fedveil.vertical.one_process import look
from fedveil.vertical.predictions import PredictionFile, told_numbers
from fedveil.vertical.rows import Rows
from fedveil.vertical.task import SUBSETS, Columns, Task, build
from fedveil.vertical.task_settings import TablesSettings
from folders import EXAMPLES

EXAMPLE = EXAMPLES / "vertical"
ROWS = 60


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, on one thread."""
    monkeypatch.chdir(tmp_path)


def write_table(path: str, columns: dict[str, Any]) -> None:
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows(zip(*columns.values(), strict=True))


def two_tables() -> dict[str, dict[str, Any]]:
    """lead.csv and bank.csv: the label is the sign of a sum over both; each lacks two rows."""
    draw = Seeded(3).generator()
    ids = np.array([f"P{number}" for number in range(ROWS)])
    age, income = draw.normal(40, 10, ROWS), draw.normal(0, 1, ROWS)
    city = np.array(["Rome", "Oslo", "Bern", "Rome", "Oslo", "Rome"])[np.arange(ROWS) % 6]
    rich = np.where((age - 40) / 10 + income > 0, "yes", "no")
    owe = -3 * income + 100
    order = Seeded(4).permutation(ROWS)[:-2]
    tables = {
        "lead": {"id": ids[2:], "rich": rich[2:], "age": age[2:], "owes": owe[2:]},
        "bank": {"client": ids[order], "income": income[order], "city": city[order]},
    }
    for name, columns in tables.items():
        write_table(f"{name}.csv", columns)
    return tables


FILES: dict[str, dict[str, Any]] = {
    "lead": {"path": "lead.csv", "label": "rich", "without": ["owes"]},
    "bank": {"path": "bank.csv", "id": "client", "categories": {"city": 3}},
}


def settings_of(files: dict[str, Any] | None = None, **data: Any) -> TablesSettings:
    return TablesSettings(
        **{"leader": "lead", "owners": ["lead", "bank"], "files": files or FILES, **data}
    )


def task_of(files: dict[str, Any] | None = None, **data: Any) -> Tables:
    return Tables(settings_of(files, **data))


def job_of(epochs: int = 3, **data: Any) -> VerticalJob:
    block = settings_of(**data).model_dump()
    return VerticalJob(epochs=epochs, batch_size=8, task={"name": "tables", "tables": block})


# Reading a table


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).map(str.strip)
rows = st.lists(
    st.tuples(cells.filter(bool), st.floats(allow_nan=False, allow_infinity=False), cells),
    min_size=1,
    max_size=8,
    unique_by=lambda row: row[0],
)


@settings(max_examples=100, deadline=None)
@given(rows)
def test_what_a_csv_writer_writes_is_read_back(made: list[tuple[str, float, str]]) -> None:
    ids, numbers, words = map(list, zip(*made, strict=True))
    write_table("made.csv", {"key": ids, "x": numbers, "unread": ids, "word": words})
    table = read("made.csv", Wanted("key", ("x",), ("word",), {"word"}))
    assert table.ids.tolist() == ids
    assert table.numbers("x").tolist() == numbers
    assert words_of(table, "word") == words


def words_of(table: Table, column: str) -> list[str]:
    return [table.known[column][code] for code in table.codes(column)]


def test_spaces_blank_lines_a_mark_and_more_rows_than_are_read_at_once() -> None:
    count = 20_000
    lines = [f" P{i} ,{i}.5 \r\n" for i in range(count)]
    lines.insert(9_000, "\r\n")
    Path("long.csv").write_text("\ufeffid , x\r\n" + "".join(lines), encoding="utf-8", newline="")
    assert header("long.csv") == ["id", "x"]
    table = read("long.csv", Wanted("id", ("x",)))
    assert len(table) == count
    assert table.ids[[0, -1]].tolist() == ["P0", f"P{count - 1}"]
    np.testing.assert_array_equal(table.numbers("x"), np.arange(count) + 0.5)
    assert table.place(0) == "long.csv, line 2"
    assert table.place(count - 1) == f"long.csv, line {count + 2}"
    some = table.rows(np.arange(count) % 3 == 2)
    assert (some.ids[3], some.numbers("x")[3], len(some)) == ("P11", 11.5, count // 3)
    assert some.place(3) == table.place(11) == "long.csv, line 13"


def test_lines_are_counted_through_cells_of_several_lines() -> None:
    Path("t.csv").write_text('id,x\n"a\nb",1\nc,old\n')
    with pytest.raises(DataInvalid, match=r"^t\.csv, line 4: x = 'old' is not a finite number$"):
        read("t.csv", Wanted("id", ("x",)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("id,x\na,1\n\nb,2\na,3\n", "t.csv, line 5: the id 'a' is also in line 2, but ids "),
        ("id,x\na,1\n,2\n", "t.csv, line 3: id is empty"),
        ("key,x\na,1\n", "t.csv has no column 'id', which the job names; its columns are key, x"),
        ("id,x\na,1\nb\n", "t.csv, line 3 has 1 cells, but the header has 2"),
        ("id,x\na,1,2\n", "t.csv, line 2 has 3 cells, but the header has 2"),
        ("id,x\na,old\n", "t.csv, line 2: x = 'old' is not a finite number"),
        ("id,x\na,1\nb,inf\n", "t.csv, line 3: x = 'inf' is not a finite number"),
        ("id,x\na,1\nb,1e999\n", "t.csv, line 3: x = '1e999' is not a finite number"),
        ("id,x\na,1\nb,\n", "t.csv, line 3: x is empty"),
        ("id,x\na,nan\n", "t.csv, line 2: x is empty"),
        ("id,x\na,NA\n", "t.csv, line 2: x is empty"),
        ("id,x\n", "t.csv has a header but no rows"),
        ("", "t.csv has no header: its first line names the columns"),
        ("x,id,x\n1,a,2\n", "t.csv: the header names 'x' twice"),
        (
            ",id,x\n0,a,1\n",
            "t.csv: column 1 of the header has no name. If it is the index of pandas, write "
            "index=False in to_csv",
        ),
        ('id,x\na,"1"2\n', "t.csv, line 2 is not valid CSV: ',' expected after '\"'"),
        (b"id,x\na,\xff\n", "t.csv, line 2: x = 'ÿ' is not a finite number"),
        (b"\xff\xfei\0d\0", "t.csv has no column 'x', which the job names; its columns are id"),
    ],
)
def test_what_is_no_table_is_one_sentence(text: str | bytes, sentence: str) -> None:
    Path("t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataInvalid) as caught:
        read("t.csv", Wanted("id", ("x",)))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_cell_that_is_too_long_is_one_problem_among_others() -> None:
    long = "1" * (csv.field_size_limit() + 1)
    Path("t.csv").write_text(f'id,x\n"a\nb",1\nc,{long}\nd,old\n')
    said = (
        r"^t\.csv has 2 problems: \(1\) line 4 has a cell of more than 131,072 characters; "
        r"\(2\) line 5: x = 'old' is not a finite number$"
    )
    with pytest.raises(DataInvalid, match=said):
        read("t.csv", Wanted("id", ("x",)))


@pytest.mark.parametrize("cells", ['"{}"', '"""{}""",', '"a","b"",{}"', 'a"b,"{}"'])
def test_lines_inside_a_cell_that_is_too_long_are_no_rows(cells: str) -> None:
    """Otherwise the text of one cell could add any number of rows."""
    inside = "1" * (csv.field_size_limit() + 1) + '\nd,5,6\n""e"",7\nf,8,9\n'
    Path("t.csv").write_text(f"id,x,y\na,2,3\nb,{cells.format(inside)}\nc,3,4\ng,10\n")
    with pytest.raises(DataInvalid) as caught:
        read("t.csv", Wanted("id", ("x",)))
    said = "(1) line 3 has a cell of more than 131,072 characters; (2) line 9 has 2 cells, but "
    assert said in str(caught.value)


_PIECES = ['"', '""', "a", "bbbbb", "\n", "\r\n", "\r", '"\n', "|", '"|', '|"']


@given(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=14), st.integers(0, 14))
def test_a_limit_leaves_out_only_records_with_a_long_cell(pieces: list[str], cut: int) -> None:
    """All other records, and all errors, are those of a reader without a limit."""
    lines = io.StringIO("".join(pieces), newline="").readlines()
    blocks = [*filter(None, ("".join(lines[:cut]), "".join(lines[cut:])))]
    whole = csv.reader(lines, strict=True, delimiter="|")
    expected: list[list[str]] | None = None
    with suppress(csv.Error):
        expected = [row for row in whole if len(row) == 2 and max(map(len, row)) <= 4]
    most, refusals = csv.field_size_limit(4), Refusals("t.csv")
    found: list[list[str]] | None = None
    try:
        with suppress(DataInvalid):
            form = CsvFormat("t.csv", "utf-8", "|", None)
            found = [row for _, row in _records(form, iter(blocks), 0, ["x", "y"], refusals)]
    finally:
        csv.field_size_limit(most)
    assert found == expected


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("c,3;4", "unexpected end of data"),
        ('c,3;4\n"e";5', "';' expected after '\"'"),
        ('c,3;4""\n;5"\r\nf;6', ""),
    ],
)
def test_a_quote_that_nobody_closed_skips_no_rows(last: str, said: str) -> None:
    """A cell that is too long has an end of its own, or the file is not valid."""
    between = "".join(f"d{i},{i};\n" for i in range(csv.field_size_limit() // 7))
    Path("t.csv").write_text(f'id;x\na;2\n"b;1,\n{between}{last}', newline="")
    with pytest.raises(DataInvalid) as caught:
        read("t.csv", Wanted("id", ("x",)))
    whole = f"t.csv, line 3 is not valid CSV: {said}"
    assert str(caught.value) == (
        whole if said else "t.csv, line 3 has a cell of more than 131,072 characters"
    )


def test_a_file_that_is_not_there_is_one_sentence() -> None:
    missing = r"^t\.csv cannot be read: No such file or directory; it was looked for from"
    with pytest.raises(DataUnavailable, match=missing):
        read("t.csv", Wanted("id"))


# A table's columns as a task


def test_each_partys_columns_come_from_its_own_training_rows() -> None:
    tables, task = two_tables(), task_of()
    assert isinstance(task, Task)
    split = task.split_model()
    for party, number in (("lead", "age"), ("bank", "income")):
        ids, values = tables[party][FILES[party].get("id", "id")], tables[party][number]
        test = held_out(ids, 0.2)
        for subset, chosen in (("train", ~test), ("test", test)):
            held = task.owned(party, subset)
            assert held.ids.tolist() == ids[chosen].tolist()
            expected = (values[chosen] - values[~test].mean()) / values[~test].std()
            numbers, places = held.columns["numbers"], held.columns["intervals"]
            np.testing.assert_allclose(numbers[:, 0], expected, rtol=1e-5, atol=1e-6)
            edges = np.quantile(values[~test], np.arange(1, 8) / 8)
            intervals = (values[chosen][:, None] >= edges).sum(axis=1)
            np.testing.assert_array_equal(places[:, 0], intervals)
            for part in split.owned_by(party)[:2]:
                given = [held.columns[name] for name in part.columns]
                assert part.module(*given).shape == (len(held), *part.output)
    assert task.owned("bank", "train").labels is None
    test = held_out(tables["lead"]["id"], 0.2)
    for subset, chosen in (("train", ~test), ("test", test)):
        labels = task.owned("lead", subset).labels
        assert labels.tolist() == (tables["lead"]["rich"][chosen] == "yes").astype(int).tolist()


def test_pieces_of_a_file_are_encoded_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    two_tables()
    whole = task_of()
    expected = {s: whole.owned("bank", s) for s in SUBSETS}
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 8)
    monkeypatch.setattr(column_encoding, "_TOGETHER", 9)
    in_pieces = task_of()
    for subset, columns in expected.items():
        found = in_pieces.owned("bank", subset)
        assert found.ids.tolist() == columns.ids.tolist()
        for name, column in columns.columns.items():
            assert torch.equal(found.columns[name], column), name


def test_words_have_places_by_how_often_they_are_there() -> None:
    words = ["b", "a", "c", "a", "b", "d", ""]
    write_table("t.csv", {"id": range(7), "w": words})
    table = read("t.csv", Wanted("id", (), ("w",), {"w"}))
    encoding = Words.of(table, "w", 4)
    assert encoding.words == ("a", "b", "c")
    assert encoding.applied(table, "w").tolist() == [1, 0, 2, 0, 1, 3, 3]
    assert Words.of(table, "w", 9).applied(table, "w").tolist() == [1, 0, 2, 0, 1, 3, 8]


def test_a_row_takes_no_more_bytes_than_its_places_and_numbers() -> None:
    """However many words a column has: one byte, or two, say which it is."""
    count = 600
    words = [f"w{i % 500}" for i in range(count)]
    write_table("t.csv", {"id": range(count), "x": range(count), "w": words, "v": words})
    table = read("t.csv", Wanted("id", ("x",), ("w", "v")))
    for places, bytes_each in ((200, 1), (257, 2), (501, 2)):
        columns = {
            "x": Numbers.of(table, "x", 8),
            "w": Words.of(table, "w", places),
            "v": Words.of(table, "v", 3),
        }
        (applied,) = Encoding(columns=columns).applied(table)
        held = sum(column.nbytes for column in applied.values())
        assert held == count * (4 + 1 + 2 * bytes_each)
        assert applied["words"][:, 0].long().tolist() == columns["w"].applied(table, "w").tolist()


def test_the_wide_part_is_a_linear_layer_of_what_is_one_hot() -> None:
    torch.manual_seed(0)
    part = Wide(Features(intervals=(4, 3), places=(5,)), 6)
    intervals = torch.tensor([[3, 0], [1, 2]], dtype=torch.uint8)
    words = torch.tensor([[4], [0]], dtype=torch.int16)
    hot = [functional.one_hot(column.long(), count).float() for column, count in zip(
        (intervals[:, 0], intervals[:, 1], words[:, 0]), (4, 3, 5), strict=True)]  # fmt: skip
    expected = torch.cat(hot, dim=1) @ part.rows.weight
    torch.testing.assert_close(part(intervals, words), expected)


def test_the_deep_part_reads_a_vector_for_each_word() -> None:
    part = Deep(Features(intervals=(8,), places=(3, 4)), 5, 6)
    numbers, words = torch.tensor([[0.5]]), torch.tensor([[2, 1]], dtype=torch.uint8)
    table = part.words.weight
    expected = part.layers(torch.cat([numbers, table[None, 2], table[None, 3 + 1]], dim=1))
    torch.testing.assert_close(part(numbers, words), expected)
    alone = Deep(Features(intervals=(), places=(3,)), 5, 6)
    assert alone(torch.empty(2, 0), torch.tensor([[2], [0]])).shape == (2, 6)


def test_rows_are_taken_from_the_disk_in_the_agreed_order() -> None:
    two_tables()
    owned = task_of().owned("bank", "train")
    order = Seeded(5).permutation(len(owned))
    rows = Rows.aligned(owned, ("numbers", "words"), order)
    assert all(rows.stored[name] is owned.columns[name] for name in rows.stored), "a copy"
    batch = rows.batch(np.array([3, 1]))
    for name, column in batch.columns.items():
        assert torch.equal(column, owned.columns[name][order[[3, 1]]])
    columns = {name: column[order] for name, column in owned.columns.items()}
    there = Columns(owned.ids[order], columns)
    same = Rows.aligned(there, ("numbers", "words"), np.arange(len(order)))
    assert rows.fingerprint() == same.fingerprint()
    other = Rows.aligned(owned, ("numbers", "words"), np.roll(order, 1))
    assert rows.fingerprint() != other.fingerprint()


def test_a_missing_number_is_the_mean_of_those_that_are_there() -> None:
    write_table("t.csv", {"id": range(5), "x": [1, "", 3, "NA", 8]})
    table = read("t.csv", Wanted("id", ("x",), (), {"x"}))
    encoding = Numbers.of(table, "x", 3)
    assert encoding.scale.mean == 4
    spread, scaled = np.std([1, 3, 8]), encoding.scale.applied(table, "x")
    np.testing.assert_allclose(scaled, np.array([-3, 0, -1, 0, 4]) / spread, rtol=1e-6)
    np.testing.assert_allclose(encoding.edges, (7 / 3, 14 / 3))
    again, places = np.empty(5, np.float32), np.empty(5, np.uint8)
    encoding.encode(table.numbers("x"), again, places)
    assert (again.tolist(), places.tolist()) == (scaled.tolist(), [0, 1, 1, 1, 2])


@pytest.mark.parametrize("bins", [1, 4, 40])
def test_native_code_encodes_numbers_as_numpy_does(bins: int) -> None:
    values = np.array([*Seeded(8).generator().normal(3, 50, 97), np.nan, 1e300, -0.0, 3.0])
    edges = np.sort(np.append(values[:97:5], 3.0))[: bins - 1]
    both = []
    for encode in (column_encoding._encode, column_encoding._encode_numpy):
        scaled, places = np.empty((101, 3), np.float32), np.empty((101, 2), np.uint8)
        encode(values, 2.5, 0.7, edges, scaled[:, 1], places[:, 1])
        both.append((scaled[:, 1].tobytes(), places[:, 1].tobytes()))
    assert both[0] == both[1]


@pytest.mark.parametrize("bins", [3, 17, 20, 300])
def test_a_number_on_a_bound_is_in_the_interval_above_it(bins: int) -> None:
    """By comparison with each bound, or by a search among many."""
    edges = np.arange(1.0, bins)
    numbers = Numbers(scale=Scale(mean=0, deviation=1), edges=tuple(edges.tolist()))
    values = np.array([0, 1, 1.5, 2, bins - 1.5, bins - 1, bins + 1])
    scaled, intervals = np.empty(7, np.float32), np.empty(7, np.int64)
    numbers.encode(values, scaled, intervals)
    assert intervals.tolist() == (values[:, None] >= edges).sum(axis=1).tolist()
    assert scaled.tolist() == values.tolist()
    frequent = Numbers(scale=Scale(mean=0, deviation=1), edges=(1, 1, 2))
    sizes = Encoding(columns={"a": frequent, "b": numbers}).features
    assert sizes == Features(intervals=(4, bins)), "also of intervals without a number"
    write_table("t.csv", {"id": range(700), "x": range(700)})
    made = Numbers.of(read("t.csv", Wanted("id", ("x",))), "x", bins)
    (applied,) = Encoding(columns={"x": made}).applied(read("t.csv", Wanted("id", ("x",))))
    expected = (np.arange(700)[:, None] >= np.array(made.edges)).sum(axis=1)
    assert applied["intervals"][:, 0].tolist() == expected.tolist()


def test_classes_are_in_the_order_of_their_numbers_before_texts() -> None:
    names = ["b", "10", "9", "-30", "a"]
    write_table("t.csv", {"id": range(10), "y": names * 2})
    table = read("t.csv", Wanted("id", (), ("y",)))
    assert Classes.of(table, "y", 5).classes == ("-30", "9", "10", "a", "b")
    with pytest.raises(DataInvalid, match=r"has 5 classes, '-30', '9', '10', 'a', 'b', in the tra"):
        Classes.of(table, "y", 4)
    write_table("t.csv", {"id": range(12), "y": [*names, "c"] * 2})
    table = read("t.csv", Wanted("id", (), ("y",)))
    with pytest.raises(DataInvalid, match=r"6 classes, '-30', '9', '10', 'a', 'b', \.\.\., in the"):
        Classes.of(table, "y", 5)


def test_words_of_held_out_rows_alone_have_no_index_of_their_own() -> None:
    write_table("t.csv", {"id": range(6), "w": ["b", "a", "only", "a", "b", "only"]})
    table = read("t.csv", Wanted("id", (), ("w",)))
    train = table.rows(np.array([True, True, False, True, True, False]))
    words = Words.of(train, "w", 9)
    assert words.words == ("a", "b")
    assert words.applied(table, "w").tolist() == [1, 0, 8, 0, 1, 8]
    full = Encoding(columns={"w": Words(words=("a", "b"), places=2)})
    assert not full.fits({"w": 2}, 8), "no index is left for other words"
    assert Encoding(columns={"w": Words(words=("a", "b"), places=3)}).fits({"w": 3}, 8)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite, finite, st.lists(finite), st.lists(st.text(), min_size=2, unique=True))
def test_an_encoding_is_read_back_as_it_was(mean, deviation, edges, words) -> None:
    scale = Scale(mean=mean, deviation=abs(deviation) or 1.0)
    columns = {
        "x": Numbers(scale=scale, edges=tuple(edges)),
        words[0]: Words(words=tuple(words), places=9),
    }
    encoding = Encoding(columns=columns, label=scale)
    back = Encoding.read(encoding.written(), "here")
    assert back == encoding
    assert list(back.columns) == list(columns)


# Held-out rows


def test_all_parties_hold_out_the_same_ids_in_whatever_order() -> None:
    ids = np.array([f"c{number}" for number in range(20_000)])
    order = Seeded(1).permutation(len(ids))
    out = held_out(ids, 0.2)
    np.testing.assert_array_equal(held_out(ids[order], 0.2), out[order])
    np.testing.assert_array_equal(held_out(ids[5:9].astype("U40"), 0.2), out[5:9])
    assert not (out & ~held_out(ids, 0.3)).any(), "a larger share includes a smaller one"
    low, high = binom.ppf([5e-7, 1 - 5e-7], len(ids), 0.2)
    assert low <= out.sum() <= high


def test_which_ids_are_held_out_stays_the_same_from_release_to_release() -> None:
    ids = np.array([f"c{number}" for number in range(40)])
    assert np.flatnonzero(held_out(ids, 0.2)).tolist() == [2, 6, 11, 12, 22, 26, 33, 35, 36, 37]


def test_files_of_held_out_examples() -> None:
    tables = two_tables()
    files = {name: {**FILES[name], "test": f"{name}-test.csv"} for name in FILES}
    for name, columns in tables.items():
        key = FILES[name].get("id", "id")
        renamed = {**columns, key: [f"T{number}" for number in columns[key]]}
        write_table(f"{name}-test.csv", {k: v[:9] for k, v in renamed.items()})
    task = task_of(files, test_fraction=None)
    assert len(task.owned("bank", "train")) == ROWS - 2
    assert task.owned("lead", "test").ids.tolist() == [f"TP{number}" for number in range(2, 11)]
    first, *others = Path("bank-test.csv").read_text().splitlines()
    row = Path("bank.csv").read_text().splitlines()[1]
    Path("bank-test.csv").write_text("\n".join([first, *others, row]) + "\n")
    known = re.escape(repr(str(tables["bank"]["client"][0])))
    line = len(others) + 2
    sentence = rf"^bank-test\.csv, line {line}: the id {known} is also in bank\.csv, but held-out"
    with pytest.raises(DataInvalid, match=sentence):
        task_of(files, test_fraction=None).owned("bank", "test")


def saved(task: Tables, *parties: str) -> Path:
    """Save the files of these parties, as a run does in its folder."""
    folder = Path("saved")
    folder.mkdir(exist_ok=True)
    for party in parties:
        for name, data in task.files(party).items():
            (folder / name).write_bytes(data)
    return folder


def test_a_saved_encoding_and_summary_are_of_a_partys_own_training_rows() -> None:
    tables, task = two_tables(), task_of()
    summary = Summary.read(task.files("bank")["summary-bank.json"], "file")
    assert list(summary.columns) == ["income", "city"]
    chosen = ~held_out(tables["bank"]["client"], 0.2)
    assert summary.rows == chosen.sum()
    counts = Counter(tables["bank"]["city"][chosen].tolist())
    assert summary.columns["city"].words == counts
    folder = saved(task, "lead", "bank")
    expected = [part.output for part in task.split_model().parts]
    for name in ("lead.csv", "bank.csv"):
        Path(name).unlink()  # a saved encoding has all sizes
    again = Tables(settings_of(), folder=folder)
    assert [part.output for part in again.split_model().parts] == expected
    with pytest.raises(DataInvalid, match=r"saved/table-\w+\.json is damaged: it is not an encodi"):
        Tables(settings_of(bins=5), folder=folder).split_model()
    two_tables()
    with pytest.raises(DataInvalid, match=r"saved/table-bank\.json is damaged: it is not an enco"):
        Tables(settings_of(bins=5), folder=folder).owned("bank", "train")


def test_the_parts_of_tables_here_are_made_by_their_shapes() -> None:
    two_tables()
    assert task_of().by_shape == ["lead", "bank"]
    nowhere = {**FILES, "bank": {**FILES["bank"], "path": None}}
    assert task_of(nowhere).by_shape == ["lead"]
    own = {**FILES, "lead": {"path": "lead.csv", "label": "rich"}}
    assert task_of(own, owners=["bank", "shop"]).by_shape == ["bank", "lead"]


def dated(dates: Sequence[str], name: str = "t.csv", first: int = 0) -> str:
    write_table(name, {"id": [f"k{first + n}" for n in range(len(dates))],
                       "y": [n % 2 for n in range(len(dates))], "d": dates})  # fmt: skip
    return name


def dates_task(folder: Path | None = None, **table: Any) -> Tables:
    files = {"lead": {"path": "t.csv", "label": "y", **table}}
    fraction = None if "test" in table else 0.2
    return Tables(settings_of(files, test_fraction=fraction), folder=folder)


def test_a_stated_kind_counts_more_than_that_of_the_training_rows() -> None:
    """A later file may have only dates that either order reads."""
    dated([f"{n % 28 + 1:02d}/{n % 12 + 1:02d}/2024" for n in range(40)])
    dated(["01/02/2024", "03/04/2024"], "test.csv", 90)
    task = dates_task(test="test.csv", kinds={"d": "day-first"})
    scale = task._of("lead").encoding.columns["d"].scale
    told = task.owned("lead", "test").columns["numbers"][:, 0].double() * scale.deviation
    np.testing.assert_allclose(told + scale.mean, [19754, 19816], atol=1e-3)
    with pytest.raises(DataInvalid, match=r"^test\.csv: d = '01/02/2024' in line 2 has two read"):
        dates_task(test="test.csv").owned("lead", "test")
    folder = saved(task, "lead")
    dated(["05/06/2024", "07/08/2024", *["09/10/2024"] * 20])
    assert len(dates_task(folder, kinds={"d": "day-first"}).owned("lead", "train")) > 10
    dated(["20240601"] * 22)
    with pytest.raises(DataInvalid, match=r"^t\.csv, line 2: d = '20240601' is not a date"):
        dates_task(folder).owned("lead", "train")


def test_each_way_of_reading_is_said_once_and_a_wrong_cell_before_a_share() -> None:
    dated(["2024-01-02"] * 20 + ["2024-05-06"] * 20)
    assert dates_task().notes("lead") == ["t.csv: UTF-8, separated by comma; dates in d"]
    Path("test.csv").write_text("id;y;d\nz1;1;2024-02-03\nz2;0;2024-02-04\n")
    assert dates_task(test="test.csv").notes("lead") == [
        "t.csv: UTF-8, separated by comma; dates in d",
        "test.csv: UTF-8, separated by semicolon; dates in d",
    ]
    dated(["2024-01-02", "old"])
    file = {"lead": {"path": "t.csv", "label": "y"}}
    with pytest.raises(DataInvalid, match=r"^t\.csv, line 3: d = 'old' is not a date"):
        task_of(file, test_fraction=1e-9).owned("lead", "train")


# Whose table it is


def test_a_party_reads_its_own_table_alone_and_agrees_on_the_rest() -> None:
    two_tables()
    Path("lead.csv").unlink()
    job = job_of(files={"bank": FILES["bank"]})
    task = build("tables", job.task.settings, 0)
    split = make_split(job, task, here={"bank"})
    assert split.by_name["lead_deep"].module is None
    assert split.by_name["bank_deep"].module is not None
    assert len(task.owned("bank", "train")) > 20
    leader = job_of(files={"lead": {"path": "elsewhere.csv", "label": "y"}})
    assert leader.agreed() == job.agreed()
    narrow = job_of(files={"bank": FILES["bank"]}, width=4)
    told = next(differences(narrow.agreed(), leader.agreed()))
    assert told == ("task.tables.width", "4", "32")
    with pytest.raises(
        JobError, match=r"^task\.tables\.files\.lead\.path is missing: set it to the file of"
    ):
        make_split(job, task)


def test_owners_may_be_many_and_the_leader_none_of_them() -> None:
    two_tables()
    shutil.copy("bank.csv", "shop.csv")
    files = {**FILES, "shop": {**FILES["bank"], "path": "shop.csv", "features": ["income"]}}
    del files["shop"]["categories"]
    files["lead"] = {"path": "lead.csv", "label": "rich"}
    block = settings_of(files, owners=["bank", "shop"]).model_dump()
    job = VerticalJob(epochs=1, task={"name": "tables", "tables": block})
    run = train(job, "run")
    assert [part.name for part in run.split.parts] == [
        "bank_wide", "bank_deep", "shop_wide", "shop_deep", "top"]  # fmt: skip
    assert run.metrics[-1]["test_accuracy"] > 0
    assert json.loads(Path("run/table-lead.json").read_text())["columns"] == {}


def test_row_numbers_that_pandas_writes_are_features_only_where_they_are_asked_for() -> None:
    columns = two_tables()["bank"]
    numbers = {f"__index_level_{level}__": list(range(len(columns["city"]))) for level in (0, 12)}
    write_table("bank.csv", columns | numbers | {"__index_level__": columns["income"]})
    assert list(task_of()._encoding("bank").columns) == ["income", "city", "__index_level__"]
    asked = {**FILES["bank"], "features": ["city", "__index_level_12__"]}
    made = task_of({**FILES, "bank": asked})._encoding("bank")
    assert list(made.columns) == ["city", "__index_level_12__"]


def test_a_category_is_set_by_its_path() -> None:
    tables = VerticalJob.load(None, ["task.tables.files.bank.categories.city=4"]).task.tables
    assert tables.files["bank"].categories == {"city": 4}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("task.tables.files.bank.categories.city=1", "task.tables.files.bank.categories.city = 1 "),
        ("task.tables.files.bank.file=x", "task.tables.files.bank.file = 'x' is not a known key"),
        ("task.tables.files.bank.path=''", "task.tables.files.bank.path = '' is not the path of a"),
        ("task.tables.classes=1", "task.tables.classes = 1 is outside [2, inf)"),
    ],
)
def test_settings_that_there_are_not(override: str, sentence: str) -> None:
    with pytest.raises(JobError) as caught:
        VerticalJob.load(None, [override])
    assert str(caught.value).startswith(sentence)
    assert len(caught.value.problems) == 1


def test_a_category_that_is_not_text_is_one_sentence() -> None:
    files = {"bank": {"categories": {3: 4}}}
    with pytest.raises(JobError) as caught:
        VerticalJob(task={"tables": {"files": files}})
    place = "task.tables.files.bank.categories.3"
    assert caught.value.problems == (f"{place} is a name that is not text",)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"leader": "the boss"}, "task.tables.leader: 'the boss' is not a name: a letter or _"),
        ({"owners": []}, "task.tables.owners = [] "),
        ({"owners": ["lead"]}, "task.tables.owners = ['lead'] is invalid: list distinct parties,"),
        ({"owners": ["lead", "bank", "bank"]}, "task.tables.owners = ['lead', 'bank', 'bank'] is "),
        ({"bnak": {}}, "task.tables.files.bnak belongs to no party; the parties are lead, bank"),
        (
            {"lead": {"label": None}},
            "task.tables.files.lead.label is missing: set it to the column",
        ),
        ({"bank": {"label": "x"}}, "task.tables.files.bank.label = 'x' is only for the leader, le"),
        ({"bank": {"class_weights": {"a": 2.0}}}, "task.tables.files.bank.class_weights is only "),
        ({"classes": None, "lead": {"class_weights": {"a": 2.0}}}, "task.tables.files.lead.class_"),
        (
            {"lead": {"label": "id"}},
            "task.tables.files.lead.label = 'id' is also the column of ids",
        ),
        ({"bank": {"test": "x"}}, "task.tables.files.bank.test = 'x' needs task.tables.test_fract"),
        ({"test_fraction": None}, "task.tables.files.lead.test is missing: with task.tables.test_"),
        ({"lead": {"features": ["age"]}}, "task.tables.files.lead.without = ['owes'] is only for "),
        ({"bank": {"features": []}}, "task.tables.files.bank.features = [] is empty: list the col"),
        ({"bank": {"features": ["a", "a"]}}, "task.tables.files.bank.features = ['a', 'a'] names "),
        ({"bank": {"features": ["client"]}}, "task.tables.files.bank.features names 'client', the"),
        (
            {"lead": {"features": ["rich"], "without": []}},
            "task.tables.files.lead.features names 'rich', the column of ids or labels",
        ),
        (
            {"bank": {"features": ["income"], "without": ["city"]}},
            "task.tables.files.bank.without = ['city'] is only for features = null",
        ),
    ],
)
def test_settings_that_do_not_go_together(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedveilError) as caught:
        changed(data)
    assert str(caught.value).startswith(sentence)


def changed(data: dict[str, Any]) -> Tables:
    """The two tables' task with some settings, or settings of files, put in their place."""
    keys = {key: value for key, value in data.items() if key in TablesSettings.model_fields}
    named = {key: value for key, value in data.items() if key not in keys}
    files = {name: {**FILES.get(name, {}), **named.get(name, {})} for name in {**FILES, **named}}
    return task_of(files, **keys)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"bank": {"id": "id"}},
            "bank.csv has no column 'id', which task.tables.files.bank.id nam",
        ),
        ({"bank": {"without": ["towm"]}}, "bank.csv has no column 'towm', which task.tables.files"),
        ({"lead": {"label": "poor"}}, "lead.csv has no column 'poor', which task.tables.files.lea"),
        (
            {"bank": {"kinds": {"tpwn": "date"}}},
            "bank.csv has no column 'tpwn', which task.tables.files.bank.kinds names",
        ),
        (
            {"bank": {"categories": {"tawn": 3}}},
            "bank.csv has no column 'tawn', which task.tables.files.bank.categories names",
        ),
        ({"bank": {"categories": {}}}, "bank.csv, line 2: city = '"),
        ({"bank": {"features": ["income"]}}, "task.tables.files.bank.categories.city is not one o"),
        ({"bank": {"without": ["income", "city"], "categories": {}}}, "bank.csv has no features: "),
        ({"bank": {"path": "x.csv"}}, "x.csv cannot be read: No such file or directory"),
        ({"classes": 3}, "lead.csv: rich has 2 classes, 'no', 'yes', in the training rows, but "),
        ({"classes": None}, "lead.csv, line 2: rich = '"),
        ({"test_fraction": 1e-9}, "task.tables.test_fraction = 1e-09 holds out 0 of the 58 exam"),
        ({"test_fraction": 0.999999}, "task.tables.test_fraction = 0.999999 holds out 58 of the 5"),
    ],
)
def test_what_a_table_cannot_be_is_one_sentence(data: dict[str, Any], sentence: str) -> None:
    two_tables()
    task = changed(data)
    with pytest.raises(FedveilError) as caught:
        _ = [task.owned(party, "train") for party in ("lead", "bank")]
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("rich", ["yes"] * 58, "lead.csv: rich has one class only, 'yes', in the training rows"),
        ("rich", ["", *["yes", "no"] * 28, "no"], "lead.csv, line 2: rich is empty"),
        ("rich", ["9" * 5000] * 58, "lead.csv: rich has one class only, '999"),
        ("age", [4] * 58, "lead.csv: age is 4 in every training row, so nothing can be learnt"),
        ("age", [""] * 58, "lead.csv: age is empty in every training row"),
        ("age", [1e308, -1e308] * 29, "lead.csv: age has numbers that cannot be scaled"),
        ("age", [5e-324, 0.0] * 29, "lead.csv: age has numbers that cannot be scaled"),
    ],
)
def test_columns_that_cannot_be_trained_on(column: str, values: list[Any], sentence: str) -> None:
    columns = two_tables()["lead"]
    write_table("lead.csv", {**columns, column: values})
    with pytest.raises(DataInvalid) as caught:
        changed({"lead": {"missing": "mean"}}).owned("lead", "train")
    assert str(caught.value).startswith(sentence)


def test_cells_may_lack_in_features_of_any_kind_and_never_in_labels() -> None:
    lead, bank = two_tables().values()
    city = ["" if row == 4 else name for row, name in enumerate(bank["city"])]
    write_table("bank.csv", {**bank, "city": city})
    task = changed({"bank": {"missing": "mean"}})
    assert sum(len(task.owned("bank", subset)) for subset in SUBSETS) == ROWS - 2
    with pytest.raises(DataInvalid, match=r"^bank\.csv, line 6: city is empty$"):
        task_of().owned("bank", "train")
    write_table("lead.csv", {**lead, "owes": ["", *lead["owes"][1:]]})
    own = {"missing": "mean", "label": "owes", "without": ["rich"]}
    with pytest.raises(DataInvalid, match=r"^lead\.csv, line 2: owes is empty$"):
        changed({"classes": None, "lead": own}).owned("lead", "train")


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("rich", "maybe", r"rich = 'maybe' is a class that no training row has$"),
        ("age", 1e80, r"age = 1e\+80 is too far from the training rows' num"),
    ],
)
def test_held_out_rows_that_training_rows_do_not_explain(
    column: str, value: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any piece of the file."""
    columns = two_tables()["lead"]
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 8)
    monkeypatch.setattr(column_encoding, "_TOGETHER", 9)
    row = int(np.flatnonzero(held_out(columns["id"], 0.2))[-2])
    assert row > 30
    values = columns[column].tolist()
    values[row] = value
    write_table("lead.csv", {**columns, column: values})
    with pytest.raises(DataInvalid, match=rf"^lead\.csv, line {row + 2}: {sentence}"):
        task_of().owned("lead", "test")


def test_an_unknown_party_is_one_sentence() -> None:
    with pytest.raises(InvalidValue, match="party = 'shop' is not one of lead, bank"):
        task_of().owned("shop", "train")


# Runs


def test_a_run_learns_and_its_encodings_are_read_again() -> None:
    two_tables()
    run = train(job_of(), "run")
    kept = Path("run/table-bank.json")
    quality, _ = evaluate("run")
    assert quality["accuracy"] == run.metrics[-1]["test_accuracy"]
    before = kept.read_bytes()
    encoding = json.loads(before)
    encoding["columns"]["income"]["scale"]["mean"] += 0.5
    kept.write_text(json.dumps(encoding))
    with pytest.raises(RunFolderError, match="was made with other data"):
        evaluate("run")
    kept.write_bytes(before[:-9])
    with pytest.raises(
        DataInvalid, match=r"table-bank\.json is damaged: it is not an encoding of a"
    ):
        evaluate("run")
    kept.write_bytes(before)
    for name, key, value in (
        ("city", "places", -3), ("city", "places", 2**70), ("city", "places", 2),
        ("income", "edges", [0.5]), ("income", "scale", {"mean": 0.0, "deviation": 0.0}),
    ):  # fmt: skip
        encoding = json.loads(before)
        encoding["columns"][name][key] = value
        kept.write_text(json.dumps(encoding))
        with pytest.raises(
            DataInvalid, match=r"table-bank\.json is damaged: it is not an encoding of"
        ):
            evaluate("run")
    kept.write_bytes(before)
    columns = two_tables()["bank"]
    write_table("bank.csv", {**columns, "more": columns["income"]})
    with pytest.raises(
        DataInvalid, match=r"bank\.csv does not have the features with which this run"
    ):
        evaluate("run")


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def predicted(path: str) -> list[dict[str, str]]:
    file = PredictionFile(Path(path))
    found = look("run", file.predict)
    assert found is not None
    assert file.write(found) == f"{len(found.ids)} predictions"
    return rows_of(path)


def test_predictions_name_the_ids_and_the_files_classes() -> None:
    tables = two_tables()
    run = train(job_of(), "run")
    told = predicted("told.csv")
    lead = tables["lead"]
    out = held_out(lead["id"], 0.2) & np.isin(lead["id"], tables["bank"]["client"])
    assert [row["id"] for row in told] == lead["id"][out].tolist()
    right = [row["prediction"] for row in told] == lead["rich"][out]
    assert np.mean(right) == run.metrics[-1]["test_accuracy"]
    for row in told:
        each = {name: float(row[f"probability of {name}"]) for name in ("no", "yes")}
        assert sum(each.values()) == pytest.approx(1, abs=1e-5)
        assert float(row["probability"]) == each[row["prediction"]]
    with pytest.raises(RunFolderError, match=r"told\.csv already exists"):
        PredictionFile(Path("told.csv"))
    with pytest.raises(RunFolderError, match=r"away/told\.csv: there is no folder away"):
        PredictionFile(Path("away/told.csv"))


def test_predicted_numbers_are_in_the_files_unit() -> None:
    tables = two_tables()
    files = {**FILES, "lead": {"path": "lead.csv", "label": "owes", "without": ["rich"]}}
    run = train(job_of(files=files, classes=None), "run")
    told = predicted("told.csv")
    assert list(told[0]) == ["id", "prediction"]
    lead = tables["lead"]
    truth = dict(zip(lead["id"], lead["owes"], strict=True))
    errors = [abs(truth[row["id"]] - float(row["prediction"])) for row in told]
    last = run.metrics[-1]
    assert last["test_mae"] == pytest.approx(np.mean(errors), rel=1e-4)
    assert last["test_rmse"] == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-4)


def test_a_class_has_its_own_weight_where_its_place_is_not_that_of_its_text() -> None:
    """The classes 2 and 10 are in the order of their numbers, and -1 has no weight of its own."""
    tables = two_tables()
    labels = np.array(["10", "2", "-1"])[np.arange(ROWS - 2) % 3]
    write_table("lead.csv", {**tables["lead"], "rich": labels})
    weights = {"10": 5.0, "2": 0.25}
    files = {**FILES, "lead": {**FILES["lead"], "class_weights": weights}}
    task = task_of(files, classes=3)
    assert task.class_names == ("-1", "2", "10")
    assert task.class_weights == [1.0, 0.25, 5.0]


def test_class_weights_are_the_leaders_and_move_what_is_told() -> None:
    """A class that counts more is told more often; its probabilities are what they are."""
    two_tables()
    told = {}
    for weight in (0.02, 50.0):
        lead = {**FILES["lead"], "class_weights": {"yes": weight}}
        task = task_of({**FILES, "lead": lead})
        assert task.class_weights == [1.0, weight]
        outputs, labels = torch.tensor([[0.5, -1.0], [2.0, 0.1]]), torch.tensor([1, 0])
        each = functional.cross_entropy(outputs, labels, reduction="none")
        expected = (each[0] * weight + each[1]) / 2
        torch.testing.assert_close(task.loss(outputs, labels), expected)
        assert task.metrics(outputs, labels)["loss_sum"] == pytest.approx(float(each.sum()))
        run = train(job_of(files={**FILES, "lead": lead}, epochs=2), f"run-{weight}")
        told[weight] = run.metrics[-1]["per_class"]["yes"]["recall"]
    assert told[0.02] == 0 < told[50.0] == 1
    other = {**FILES["lead"], "class_weights": {"maybe": 2.0}}
    with pytest.raises(
        DataInvalid, match=r"class_weights\.maybe is not a class; the classes are 'no', "
    ):
        task_of({**FILES, "lead": other}).class_weights  # noqa: B018


def test_a_predicted_number_has_the_digits_of_a_float32() -> None:
    numbers = (Seeded(4).generator().standard_normal(50) * 10.0 ** np.arange(-25, 25)).astype("f4")
    (told,) = told_numbers(numbers).values()
    np.testing.assert_allclose(np.array(told, float), numbers, rtol=5.01e-7)
    assert told_numbers(np.array([1234567.0, -0.25], "f4")) == {"prediction": ["1234567", "-0.25"]}


def test_predictions_of_tasks_that_say_nothing_of_their_outputs() -> None:
    train(VerticalJob(epochs=1, task="vertical_parts:bottoms"), "run")
    told = predicted("told.csv")
    assert [row["id"] for row in told] == [str(number) for number in range(20)]
    assert {row["prediction"] for row in told} <= {"0", "1", "2"}
    file = PredictionFile(Path("told.npz"))
    found = look("run", file.predict)
    assert file.write(found) == "20 outputs of shape (3,)"
    with np.load("told.npz") as arrays:
        assert arrays["outputs"].argmax(axis=1).tolist() == [int(row["prediction"]) for row in told]


def test_outputs_that_fit_no_line_are_refused_before_anything_is_sent(monkeypatch) -> None:
    train(VerticalJob(epochs=1, task="vertical_parts:bottoms"), "run")
    monkeypatch.setattr("vertical_parts.Bottoms.classes", None)
    monkeypatch.setattr("fedveil.vertical.party_run.PartyRun.predict", None)
    with pytest.raises(
        InvalidValue, match=r"outputs of shape \(3,\) do not fit the lines of told\.csv; "
    ):
        look("run", PredictionFile(Path("told.csv")).predict)
    assert not Path("told.csv").exists()
    with pytest.raises(InvalidValue, match=r"--out told\.txt must end in \.csv or \.npz"):
        PredictionFile(Path("told.txt"))


# The example, in one process and in two


def test_the_example_in_two_processes_is_the_example_in_one(tmp_path: Path) -> None:
    for name in ("make_tables.py", "job.yaml"):
        shutil.copy(EXAMPLE / name, name)
    runpy.run_path("make_tables.py", run_name="__main__")
    job = VerticalJob.load("job.yaml", ["epochs=2"])
    train(job, "run")
    told = predicted("told.csv")
    assert len(told) > 100
    assert {row["prediction"] for row in told} == {"benign", "malignant"}
    write_certificates(tmp_path / "keys", ["clinic", "laboratory"])
    for party in ("clinic", "laboratory"):
        (tmp_path / party).mkdir()
        own = job.task.tables.files[party].model_dump()
        own["path"] = str(tmp_path / party / "own.csv")
        Path(f"{party}.csv").rename(own["path"])
        data = job.model_dump()
        data["task"]["tables"]["files"] = {party: own}
        Path(f"{party}/job.yaml").write_text(VerticalJob(**data).to_yaml())
    apart(tmp_path, "leader clinic/job.yaml --out clinic/run",
          "follower laboratory/job.yaml --out laboratory/run")  # fmt: skip
    columns = {"clinic": "patient", "laboratory": "subject"}
    held = [{row[name] for row in rows_of(f"{who}/own.csv")} for who, name in columns.items()]
    outside = [name.encode() for name in held[0] ^ held[1]]
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".csv"]
    written += tmp_path.rglob("sent.csv")
    assert outside
    assert len(written) > 20
    for path in written:
        assert not any(name in path.read_bytes() for name in outside), path
    for party in ("clinic", "laboratory"):
        weights = (Path(root, party, "model.safetensors") for root in (f"{party}/run", "run"))
        assert len({path.read_bytes() for path in weights}) == 1
        kept = {path.name for path in Path(party, "run").glob("table-*")}
        assert kept == {f"table-{party}.json"}
    apart(tmp_path, "predict clinic/run --out clinic/told.csv",
          "follower --serve laboratory/run")  # fmt: skip
    assert rows_of("clinic/told.csv") == told


def test_the_tables_on_criteos_layout_are_trained_on() -> None:
    """Synthetic rows, or the real file's: tabs, no header, no ids."""
    made = runpy.run_path(str(EXAMPLE / "criteo_tables.py"))
    rows = list(made["synthetic_criteo"](300, 1))
    Path("train.txt").write_text("".join("\t".join(row[1:]) + "\n" for row in rows))
    assert list(made["real_criteo"](Path("train.txt"), None)) == rows
    made["write_tables"](rows, Path(), "made", False)
    job = made["job"]("made", "csv", 20)
    run = train(VerticalJob.read({**job, "batch_size": 100}, ()), "run")
    assert 0 <= run.metrics[-1]["test_auc"] <= 1
    words = task_of_job(run.job).owned("partner", "train").columns["words"]
    assert words.shape[1] == 19
    assert words.dtype == torch.uint8
    rate = np.mean([int(row[1]) for row in rows])
    assert 0.1 < rate < 0.5


def test_initial_weights_of_tables_follow_from_the_seed() -> None:
    two_tables()

    def weights(seed: int) -> list[float]:
        parts = Tables(settings_of(), seed).split_model().joined().parameters()
        return [float(part.detach().double().sum()) for part in parts]

    assert weights(3) == weights(3) != weights(4)


def task_of_job(job: VerticalJob) -> Tables:
    return Tables(job.task.tables)


def apart(folder: Path, leader: str, follower: str) -> None:
    """Both commands over mutual TLS; a follower that serves is interrupted when the leader ends."""
    logs = {party: folder / f"{party}.log" for party in ("clinic", "laboratory")}
    for log in logs.values():
        log.unlink(missing_ok=True)

    def start(party: str, command: str, option: str, address: str) -> Any:
        keys = str(folder / "keys" / party)
        words = [*command.split(), option, address, "--tls", keys, "--patience", "120"]
        # As in one process, where first weights follow from the job's seed.
        return vertical_process.start(["vertical", *words], logs[party], draws=0)

    leading = start("clinic", leader, "--listen", "127.0.0.1:0")
    end = time.monotonic() + 120
    while (found := _listens_on(logs["clinic"])) is None:
        assert leading.is_alive(), logs["clinic"].read_text()
        assert time.monotonic() < end
        time.sleep(0.01)
    following = start("laboratory", follower, "--connect", found)
    leading.join(120)
    if "--serve" in follower:
        os.kill(following.pid or 0, signal.SIGINT)
    following.join(120)
    said = "".join(log.read_text() for log in logs.values())
    assert leading.exitcode == 0, said
    assert following.exitcode == (130 if "--serve" in follower else 0), said


def _listens_on(log: Path) -> str | None:
    found = re.search(r"listens on (\S+)\n", log.read_text() if log.exists() else "")
    return None if found is None else found[1]

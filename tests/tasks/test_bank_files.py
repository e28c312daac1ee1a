"""Tables as a bank exports them: formats that are guessed and said, and all problems at once."""

from __future__ import annotations

import codecs
import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid, ExchangeError, FewCommon, JobError
from fedveil.link.channel import drive_together
from fedveil.record.run_folder import EVENTS
from fedveil.settings.differences import differences
from fedveil.tasks.tables import csv_block, csv_format
from fedveil.tasks.tables.cell_forms import FORMS
from fedveil.tasks.tables.disk_columns import Spool
from fedveil.tasks.tables.id_rules import hint, normalised
from fedveil.tasks.tables.number_column import Cells, NumberColumn
from fedveil.tasks.tables.own_tables import Tables, held_out
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_file import Table, Wanted, header, read
from fedveil.vertical import VerticalJob, train
from fedveil.vertical.remote import handshake
from fedveil.vertical.remote.handshake_state import Standing
from fedveil.vertical.task_settings import IdSettings, ReadingSettings, TablesSettings
from hostile_files import bounded

NAN = float("nan")
WIDE = "ZWEI"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table_of(
    content: str | bytes, *numbers: str, words: tuple[str, ...] = (), lacks: bool = False,
    rules: dict[str, Any] | None = None, **keys: Any,
) -> Table:  # fmt: skip
    """Write a file, and read the columns of it. Keys are those of `task.tables.files.NAME`."""
    Path("t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    wanted = Wanted(
        "id", numbers, words, numbers if lacks else (), ReadingSettings(**keys),
        IdSettings(**(rules or {})), "files.bank",
    )  # fmt: skip
    return read("t.csv", wanted)


def refusal(content: str | bytes, *numbers: str, **given: Any) -> str:
    with pytest.raises(DataInvalid) as caught:
        table_of(content, *numbers, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Separators and encodings


@pytest.mark.parametrize(
    ("text", "encoding", "said"),
    [
        ("id,x\nJörg,1.5\nB,2\n", "utf-8", "UTF-8, separated by comma"),
        ("id;x\nJörg;1,5\nB;2\n", "utf-8-sig", "UTF-8, separated by semicolon; decimal commas in"),
        ("id\tx\nJörg\t1.5\nB\t2\n", "cp1252", "CP1252, separated by tab"),
        ("id|x\nJörg|1.5\nB|2\n", "latin-1", "CP1252, separated by pipe"),
        ("id;x\nJörg;1,5\nB;2\n", "utf-16", "UTF-16, separated by semicolon; decimal commas in x"),
        ("id,x\nJörg,1.5\nB,2\n", "utf-16-le", "UTF-16, separated by comma"),
        ("id,x\r\nJörg,1.5\r\nB,2\r\n", "utf-16-be", "UTF-16, separated by comma"),
        ("id;x\rJörg;1.5\rB;2\r", "utf-8", "UTF-8, separated by semicolon"),
        ("id;x,y\nJörg;1.5\nB;2\n", "utf-8", "UTF-8, separated by semicolon"),
        ("id;x,y\nJörg;1.5\n\nB;2\n", "utf-8", "UTF-8, separated by semicolon"),
    ],
)
def test_a_format_is_guessed_and_said(text: str, encoding: str, said: str) -> None:
    name = "x,y" if "x,y" in text else "x"
    table = table_of(text.encode(encoding), name)
    assert table.ids.tolist() == ["Jörg", "B"]
    assert table.numbers(name).tolist() == [1.5, 2]
    assert table.said[0].startswith(f"t.csv: {said}")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("id,x;y\na,1;2\nb,3;4\n", "t.csv may be separated by comma or by semicolon; write files."),
        (b"id,x\n\x81\x9d,1\n", "t.csv is neither UTF-8 nor CP1252 text; write files.bank.enc"),
        (b"PK\x03\x04 and more", "t.csv is an Excel workbook or a zip archive, not CSV"),
        (b"\x1f\x8b\x08 and more", "t.csv is compressed by gzip, not CSV"),
    ],
)
def test_a_guess_that_could_be_wrong_is_a_refusal(content: str | bytes, sentence: str) -> None:
    assert refusal(content, "x").startswith(sentence)


def test_a_stated_format_is_not_guessed() -> None:
    Path("t.csv").write_text("id,x;y\na,1;2\nb,3;4\n")
    reading = ReadingSettings(separator="semicolon")
    assert header("t.csv", reading) == ["id,x", "y"]
    assert table_of(b"id,x\n\x81,1\n", "x", encoding="latin-1").ids.tolist() == ["\x81"]
    assert table_of("id,x\né,1\n", "x", encoding="cp1252").ids.tolist() == ["Ã©"]
    utf16 = "id,x\né,1\n".encode("utf-16-be")
    for marked in (utf16, codecs.BOM_UTF16_BE + utf16, "id,x\né,1\n".encode("utf-16")):
        assert table_of(marked, "x", encoding="utf-16").ids.tolist() == ["é"]
    assert "t.csv, line 2 is not UTF-8 text" in refusal(b"id,x\n\xff,1\n", "x", encoding="utf-8")


def test_utf16_without_a_mark_is_known_by_most_of_its_letters() -> None:
    """The first ones may be of any script."""
    for codec in ("utf-16-le", "utf-16-be"):
        table = table_of("Ключ,id,x\n".encode(codec) + "жa,Jörg,1.5\nb,B,2\n".encode(codec), "x")
        assert table.ids.tolist() == ["Jörg", "B"]
        assert table.said == ["t.csv: UTF-16, separated by comma"]


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_lines_of_utf16_are_counted_in_any_script(codec: str) -> None:
    """A line may begin with any letter, and two letters may have the bytes of a line end."""
    half = b"\xd8\x01" if codec.endswith("be") else b"\x01\xd8"
    content = "\ufeffid,x\nж\u0a0a\u0100,1\nя,2\n".encode(codec) + half + "a,3\n".encode(codec)
    said = refusal(content, "x", encoding="utf-16")
    assert said.startswith("t.csv, line 4 is not UTF-16 text")


def test_a_stated_encoding_leaves_the_separator_stated_too() -> None:
    content = "id,x;y\ni1,1;2\ni2,3;4\n"
    Path("t.csv").write_text(content)
    reading = ReadingSettings(encoding="utf-8", separator="semicolon")
    assert header("t.csv", reading) == ["id,x", "y"]


def test_a_row_that_is_too_short_does_not_hide_the_separator() -> None:
    said = refusal("id;x\na;1\nb\nc;2\n", "x")
    assert said == "t.csv, line 3 has 1 cells, but the header has 2"


def test_a_line_that_the_sample_cuts_does_not_hide_the_separator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = "id;x,y\na;1\nbcdefgh;2\n"
    monkeypatch.setattr(csv_format, "_SAMPLED_CHARACTERS", content.index("efgh"))
    assert table_of(content, "x,y").numbers("x,y").tolist() == [1.0, 2.0]


def test_lines_are_counted_through_blocks_of_either_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block may end between the two signs of a line end, and Python may read only the rest."""
    for size in (5, 6, 7, 64):
        monkeypatch.setattr(csv_format, "_AT_ONCE", size)
        rows = "".join(f"r{row},{row}\r\n" for row in range(40))
        table = table_of(f"id,x\r\n{rows}", "x")
        assert [table.places[0], table.places[-1]] == [2, 41]
        said = refusal(f'id,x\r\n{rows}"two\r\nlines",1\r\nz,old\r\n', "x")
        assert said == "t.csv, line 44: x = 'old' is not a finite number"
        said = refusal(f'id,x\r\n{rows}"two\r\nlines",1\r\nz,"1"2\r\n', "x")
        assert said.startswith("t.csv, line 44 is not valid CSV")


def test_another_encoding_after_the_part_that_is_guessed_from_names_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 10)
    monkeypatch.setattr(csv_format, "_BEGINNING", 1 << 10)
    rows = "".join(f"{row},1\n" for row in range(900)).encode()
    said = refusal(b"id,x\n" + rows + b"\xfc,1\n", "x")
    assert said == "t.csv, line 902 is not UTF-8 text; write files.bank.encoding: cp1252"


# Numbers, dates, times and truth values


@pytest.mark.parametrize(
    ("cells", "numbers", "said"),
    [
        (["1_000", "2"], [1000, 2], ""),
        (["1'234.50", "-3.25"], [1234.5, -3.25], ""),
        (["1\u00a0234,5", "2"], [1234.5, 2], "decimal commas in x"),
        (["1.234.567", "2"], [1234567, 2], "decimal commas in x"),
        (["1.234,5", "2,0"], [1234.5, 2], "decimal commas in x"),
        (["1,234.5", "+2"], [1234.5, 2], ""),
        (["0.123", "1.234"], [0.123, 1.234], ""),
        (["1e3", ".5"], [1000, 0.5], ""),
        (["2024-02-29", "1969/12/31"], [19782, -1], "dates in x"),
        (["2024-01-01T12:00Z", "2024-01-01 12:00:00+02:00"], [19723.5, 19723 + 10 / 24], "dates"),
        (["01.02.2024", "3.4.2024 06:00"], [19754, 19816.25], "dates (day first) in x"),
        (["01/02/2024", "13/04/2024"], [19754, 19826], "dates (day first) in x"),
        (["01/02/2024", "04-13-2024"], [19724, 19826], "dates (month first) in x"),
        (["31MAR2021", "01-Apr-2021"], [18717, 18718], "dates in x"),
        (["04/04/2024", "05/05/2024"], [19817, 19848], "dates (day first) in x"),
        (["2024-01-01T00:00-03:00", "2024-1-1 00:00+0530"], [19723.125, 19723 - 11 / 48], "dates"),
        (["13/04/2024 00:00+06:00"], [19825.75], "dates (day first) in x"),
        (["04-13-2024 06:00"], [19826.25], "dates (month first) in x"),
        (["01-Jul-2021", "02-Aug-2021"], [18809, 18841], "dates in x"),
        (["06:00", "23:59:59.5"], [0.25, 86399.5 / 86400], "times in x"),
        (["00:00:00.25"], [0.25 / 86400], "times in x"),
        (["J", "n"], [1, 0], "truth values in x"),
        (["-0,123"], [-0.123], "decimal commas in x"),
        (["1_000." + "1" * 900, "None"], [1000 + 1 / 9, NAN], ""),
        (["Ja", "nein"], [1, 0], "truth values in x"),
        (["FALSE", "yes"], [0, 1], "truth values in x"),
        (["0", "1"], [0, 1], ""),
        (["#N/A", "7"], [NAN, 7], ""),
        (["null", ""], [NAN, NAN], ""),
    ],
)  # fmt: skip
def test_a_column_of_numbers_has_one_form(cells: list[str], numbers: Any, said: str) -> None:
    content = "id\tx\n" + "".join(f"{row}\t{cell}\n" for row, cell in enumerate(cells))
    for empty in ([], ["unknown"]):  # with own markers of missing values, all cells are texts
        table = table_of(content, "x", lacks=True, empty=empty)
        np.testing.assert_allclose(table.numbers("x"), numbers, rtol=1e-15)
        assert said in table.said[0]
        assert bool(said) == (" in x" in table.said[0])


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (["1,000", "2"], "t.csv: x = '1,000' in line 2 has two readings; write files.bank.decimal"),
        (["7", "1.000"], "t.csv: x = '1.000' in line 3 has two readings; write files.bank.decimal"),
        (["01/02/2024", "03/04/2024"], "t.csv: x = '01/02/2024' in line 2 has two readings; write "
         "files.bank.kinds.x: day-first or month-first"),
        (["13/02/2024", "02/13/2024"], "t.csv, line 3: x = '02/13/2024' is not a date such as 31."),
        (["2023-02-29", "2023-02-28"], "t.csv, line 2: x = '2023-02-29' is not a date such as"),
        (["01.02.24", "03.04.24"], "t.csv, line 2: x = '01.02.24' has a year of two digits (2"),
        (["ja", "maybe"], "t.csv, line 3: x = 'maybe' is not a truth value such as yes or no"),
        (["5", "1.2.3"], "t.csv, line 3: x = '1.2.3' is not a finite number"),
        (["1 00", "5%"], "t.csv, line 2: x = '1 00' is not a finite number (2 such cells, such as"),
        (["2024-01-02 23:59", "2024-01-02 24:00"], "t.csv, line 3: x = '2024-01-02 24:00' is not a "
         "date such as 2024-12-31"),
        (["24:00", "12:00"], "t.csv, line 2: x = '24:00' is not a time such as 23:59"),
        (["12:00", "12:60"], "t.csv, line 3: x = '12:60' is not a time such as 23:59"),
        (["12:00:00", "12:30:60"], "t.csv, line 3: x = '12:30:60' is not a time such as 23:59"),
        (["01.02.2024", "12.13.2024"], "t.csv, line 3: x = '12.13.2024' is not a date such as 31"),
        (["1_234 567", "2"], "t.csv, line 2: x = '1_234 567' is not a finite number"),
        (["2.5", "nan(7)"], "t.csv, line 3: x = 'nan(7)' is not a finite number"),
    ],
)  # fmt: skip
def test_a_form_that_nothing_decides_is_a_refusal(cells: list[str], sentence: str) -> None:
    content = "id\tx\n" + "".join(f"{row}\t{cell}\n" for row, cell in enumerate(cells))
    assert refusal(content, "x").startswith(sentence)


def test_another_column_shows_the_mark_and_the_order() -> None:
    table = table_of("id;x;y\na;1.000;0,5\nb;2;3\n", "x", "y")
    assert table.numbers("x").tolist() == [1000, 2]
    table = table_of('id,x,y\na,"1,000",0.5\nb,2,3\n', "x", "y")
    assert table.numbers("x").tolist() == [1000, 2]
    table = table_of("id;d;e\na;01/02/2024;31.12.2023\nb;03/04/2024;1.1.2024\n", "d", "e")
    assert table.numbers("d").tolist() == [19754, 19816]
    both = "id;x;y;z\na;1.000;0,5;0.5\nb;2;3;4\n"
    assert "x = '1.000' in line 2 has two readings" in refusal(both, "x", "y", "z")


def test_keys_state_what_a_guess_cannot_know() -> None:
    ambiguous = "id;x;d\na;1.000;01/02/2024\nb;2;03/04/2024\n"
    kinds = {"d": "month-first"}
    for decimal, expected in (("comma", 1000), ("point", 1)):
        table = table_of(ambiguous, "x", "d", decimal=decimal, kinds=kinds)
        assert table.numbers("x").tolist() == [expected, 2]
        assert table.numbers("d").tolist() == [19724, 19786]
    assert "b = '2' is not a truth value" in refusal(
        "id,b\n1,0\n2,2\n", "b", kinds={"b": "boolean"}
    )
    table = table_of(ambiguous, "x", "d", decimal="comma", kinds={"d": "day-first"})
    assert table.numbers("d").tolist() == [19754, 19816]
    with_time = "id;d\n1;12/31/2023\n2;01/02/2024 06:00\n"
    assert table_of(with_time, "d", kinds={"d": "date"}).numbers("d").tolist() == [19722, 19724.25]
    assert "d = '31/12/2023' is not a date such as 12/31/2024" in refusal(
        "id,d\n1,31/12/2023\n", "d", kinds={"d": "month-first"}
    )
    numbers = table_of("id,x\n1,-999\n2,3\n", "x", lacks=True, empty=["-999"]).numbers("x")
    np.testing.assert_array_equal(numbers, [NAN, 3])
    marked = "id,x,w\n1,-999,.\n2,3,Bern\n3,.,-999\n"
    table = table_of(marked, "x", lacks=True, empty=[".", "-999"])
    np.testing.assert_array_equal(table.numbers("x"), [NAN, 3, NAN])
    assert "w is empty (2 such" in refusal(marked, words=("w",), empty=[".", "-999"])


def test_a_column_of_decimal_commas_has_no_points_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 10)
    for other in ("x", "x\ty"):  # alone, and beside a column of decimal points
        more = "\t0.25" if "y" in other else ""
        content = f"id\t{other}\n" + "".join(f"{row}\t{row % 7},5{more}\n" for row in range(900))
        names = other.split("\t")
        assert table_of(content, *names).numbers("x")[-1] == 3.5
        said = refusal(content + f"z\t1.5{more}\n", *names)
        assert said.startswith("t.csv, line 902: x = '1.5' is not a number with a decimal comma")
    assert "line 2: x = '1.5' is not a number with" in refusal(
        "id;x\na;1.5\n", "x", decimal="comma"
    )


@pytest.mark.parametrize("late", ["ja", "1,000", "02.03.2024", "1 000", ""])
def test_a_cell_of_another_form_after_many_rows_is_seen(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece is read as plain numbers, and so would be all others."""
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 10)
    rows = 900
    content = "id;x\n" + "".join(f"{row};{row % 7}.5\n" for row in range(rows)) + f"z;{late}\n"
    if late == "1 000":
        assert table_of(content, "x").numbers("x")[-1] == 1000
        return
    if late == "1,000":  # the points of the others decide
        assert table_of(content, "x").numbers("x")[-1] == 1000
        return
    what = "is empty" if not late else f"= {late!r} is not a finite number"
    assert refusal(content, "x") == f"t.csv, line {rows + 2}: x {what}"


def test_a_first_piece_of_empty_cells_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 10)
    rows = 900
    content = "id;x\n" + "".join(f"{row};\n" for row in range(rows)) + "z;ja\n"
    table = table_of(content, "x", lacks=True)
    assert table.numbers("x")[-1] == 1
    assert np.isnan(table.numbers("x")[:-1]).all()


def test_a_first_piece_of_0_and_1_may_be_truth_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 10)
    content = "id;x\n" + "".join(f"{row};{row % 2}\n" for row in range(900))
    assert table_of(content + "z;ja\n", "x").numbers("x").tolist() == [0, 1] * 450 + [1]
    assert table_of(content + "z;7\n", "x").numbers("x")[-1] == 7


def test_pieces_without_a_number_change_nothing_that_others_have_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first cells of y have a decimal comma, and x has two readings in every piece."""
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 10)
    rest = "".join(f"{row};2.000;{'k.A.' * (row > 450)}\n" for row in range(900))
    for first in ("0,5", "1 000,5"):
        table = table_of(f"id;x;y\na;1.000;{first}\nb;1.000;\n{rest}", "x", "y", lacks=True)
        assert table.numbers("x")[[0, -1]].tolist() == [1000, 2000]
    said = refusal(f"id;x;y\na;1.000;\n{rest}", "x", "y", lacks=True)
    assert said.startswith("t.csv: x = '1.000' in line 2 has two readings; write files.bank.deci")
    rest = "".join(f"{row};01/02/2024;{'k.A.' * (row > 450)}\n" for row in range(900))
    table = table_of(f"id;d;e\na;01/02/2024;31.12.2023\n{rest}", "d", "e", lacks=True)
    assert table.numbers("d")[[0, -1]].tolist() == [19754, 19754]


def test_a_cached_cell_has_the_number_that_it_has_anew() -> None:
    """Long cells are not cached, and so are not counted."""
    cells, long = Cells(()), f"1{'0' * 50}"
    for words in ([long, "5", "7"], ["9", "7", long, "8", "5"], ["8", "1,5"]):
        np.testing.assert_array_equal(cells.numbers(words), Cells(()).numbers(words))


def test_columns_of_one_form_are_named_up_to_five() -> None:
    for count, more in ((5, ""), (6, " and 1 more"), (8, " and 3 more")):
        names = [f"d{at}" for at in range(count)]
        dates = ",2024-02-03" * count
        table = table_of(f"id,n,{','.join(names)}\na,7{dates}\n", "n", *names)
        assert table.said == [
            f"t.csv: UTF-8, separated by comma; dates in d0, d1, d2, d3, d4{more}"
        ]


# All problems at once


def test_a_difference_of_forms_is_known_after_another_form_is_excluded() -> None:
    """Point and comma read the first cells alike. A later piece excludes point alone."""
    refusals = Refusals("t.csv", "line")
    column = NumberColumn("x", ReadingSettings(), Spool(), refusals, False, Cells(()))
    column.forms = ["point", "comma", "time"]
    table = np.array([[7.0, 7.0, 7.0], [2.0, 2.0, 5.0]])
    piece: Any = SimpleNamespace(places=[4, 6, 9])
    column._store(table, np.array([0, 1, 0]), ["seven", "two"], piece)
    column.forms.remove("point")
    assert column.undecided == ("comma", "time")
    column.settle((), None)
    with pytest.raises(DataInvalid, match="x = 'two' in line 6 has two readings"):
        refusals.check()


def test_all_problems_of_a_file_are_one_error() -> None:
    content = "id,x,y,z,w\na,1,q,,\n,2,3,4,v\nc,old,2,,u\nc,5,6,7,v\nd,1,2\n"
    said = refusal(content, "x", "y", "z", words=("w",))
    assert said == (
        "t.csv has 7 problems: (1) line 6 has 3 cells, but the header has 5; (2) line 3: id is "
        "empty; (3) line 4: x = 'old' is not a finite number; (4) line 2: y = 'q' is not a finite "
        "number; (5) line 2: z is empty (2 such cells, such as line 4); (6) line 2: w is empty; "
        "(7) line 5: the id 'c' is also in line 4, but ids must be distinct"
    )


def test_cells_may_lack_only_in_the_columns_that_may() -> None:
    Path("t.csv").write_text("id,x,y,v,w\na,1,,q,q\nb,,3,,q\n" + "c,5,6,,\n" * 4)
    with pytest.raises(DataInvalid) as caught:
        read("t.csv", Wanted(None, ("x", "y"), ("v", "w"), {"x", "v"}))
    assert str(caught.value) == (
        "t.csv has 2 problems: (1) line 2: y is empty; (2) line 4: w is empty (4 such cells, such "
        "as lines 5, 6)"
    )


def test_problems_of_many_pieces_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 10)
    content = "id,x,w\n" + "".join(f"{row},,\n" for row in range(900))
    assert refusal(content, "x", words=("w",)) == (
        "t.csv has 2 problems: (1) line 2: x is empty (900 such cells, such as lines 3, 4); (2) "
        "line 2: w is empty (900 such cells, such as lines 3, 4)"
    )


def test_a_file_of_short_rows_alone_names_them_and_a_bad_column_has_one_problem() -> None:
    assert refusal("id,x\nb\n", "x") == "t.csv, line 2 has 1 cells, but the header has 2"
    Path("t.csv").write_text("id,y,x\n" + "".join(f"{n},{n % 2},bad\n" for n in range(40)))
    with pytest.raises(DataInvalid, match=r"^t\.csv, line 2: x = 'bad' is not a .* lines 3, 4\)$"):
        tables("t.csv").owned("lead", "train")


def test_a_message_lists_up_to_twenty_columns_and_problems() -> None:
    for count in (20, 21):
        names = [f"c{at}" for at in range(count)]
        content = f"{','.join(['id', *names[1:]])}\n" + ",".join(["a"] * count) + "\n"
        said = refusal(content, "gone")
        assert said.endswith(f"c19{', ...' if count > 20 else ''}"[: 3 + 5 * (count > 20)])
        content = f"{','.join(['id', *names])}\n" + ",".join(["a"] * (count + 1)) + "\n"
        assert refusal(content, *names)[-12:] == ("; and 1 more" if count > 20 else "inite number")


def test_a_message_names_some_of_very_many_problems() -> None:
    names = [f"c{at}" for at in range(33)]
    content = ",".join(["id", *names]) + "\n" + "".join(
        ",".join([str(row), *["bad"] * 33]) + "\n" for row in range(50))  # fmt: skip
    said = refusal(content, *names)
    assert said.startswith(
        "t.csv has 33 problems: (1) line 2: c0 = 'bad' is not a finite number (50"
    )
    assert said.endswith("such cells, such as lines 3, 4); and 13 more")
    assert len(said) < 3000


def test_a_jobs_columns_and_their_encodings_are_refused_together() -> None:
    rows = "".join(f"{row},{row % 2},5,{'x' if row == 3 else row},\n" for row in range(40))
    Path("lead.csv").write_text("id,y,same,odd,none\n" + rows)
    with pytest.raises(DataInvalid) as caught:
        tables("lead.csv", missing="mean").owned("lead", "train")
    assert str(caught.value).startswith("lead.csv has 3 problems: (1) line 5: odd = 'x' is not a f")
    assert "(2) same is 5 in every training row" in str(caught.value)
    assert "(3) none is empty in every training row" in str(caught.value)
    with pytest.raises(DataInvalid) as caught:
        tables("lead.csv", id="nr", without=["gone"]).owned("lead", "train")
    assert (
        "no column 'nr', which task.tables.files.lead.id names, and no column 'gone', which ta"
        in (str(caught.value))
    )


def tables(path: str, rules: dict[str, Any] | None = None, **keys: Any) -> Tables:
    file = {"path": path, "label": "y", **keys}
    given = {"leader": "lead", "owners": ["lead", "bank"], "files": {"lead": file}}
    return Tables(TablesSettings.model_validate({**given, "ids": rules or {}}))


def test_labels_of_yes_and_no_are_numbers_only_if_the_job_says_so() -> None:
    Path("t.csv").write_text("id,y,x\n" + "".join(f"{n},{'yn'[n % 2]},{n}\n" for n in range(30)))
    file = {"path": "t.csv", "label": "y"}
    given = {"leader": "lead", "owners": ["lead", "bank"], "classes": None}
    for kinds in ({}, {"y": "boolean"}):
        files = {"lead": {**file, "kinds": kinds}}
        task = Tables(TablesSettings.model_validate({**given, "files": files}))
        if kinds:
            assert task.owned("lead", "train").labels is not None
        else:
            with pytest.raises(DataInvalid, match=r"y = 'y' is not a finite number"):
                task.owned("lead", "train")


def test_a_held_out_file_has_the_kinds_of_the_training_file() -> None:
    """A date that became a number of eight digits is no later date."""
    rows = [f"k{n},{n % 2},2024-{n % 12 + 1:02d}-0{n % 9 + 1}" for n in range(40)]
    Path("t.csv").write_text("\n".join(["id,y,d", *rows]))
    file = {"path": "t.csv", "test": "test.csv", "label": "y"}
    given = {"leader": "lead", "owners": ["lead", "bank"], "test_fraction": None}
    task = TablesSettings.model_validate({**given, "files": {"lead": file}})
    for dates, problem in ((("31.1.2024", "1.2.2024"), ""), (("20240131", "20240201"), "is not a")):
        test = [f"z{n},{n},{date}" for n, date in enumerate(dates)]
        Path("test.csv").write_text("\n".join(["id,y,d", *test]))
        made = Tables(task)
        if problem:
            with pytest.raises(
                DataInvalid, match=r"test\.csv, line 2: d = '20240131' is not a date"
            ):
                made.owned("lead", "test")
        else:
            assert len(made.owned("lead", "test")) == 2
            assert (
                json.loads(made.files("lead")["table-lead.json"])["columns"]["d"]["kind"] == "date"
            )


# Ids


@pytest.mark.parametrize(
    ("written", "rules", "ids"),
    [
        ([" 12", "13.0 ", "014.00", "1.5"], {}, ["12", "13", "014", "1.5"]),
        (["12.0", "12"], {"whole_numbers": False}, ["12.0", "12"]),
        (["007", "0", "-08.0", "0a"], {"leading_zeros": "drop"}, ["7", "0", "-8", "0a"]),
        (["007", "08", "009a"], {"leading_zeros": "drop"}, ["7", "8", "009a"]),
        (["14.", "15"], {}, ["14", "15"]),
        (["\u01f0"], {"case": "fold"}, ["\u01f0"]),
        (["\u00a8a"], {"unicode": "NFKC"}, ["\u0308a"]),
        (["Mu\u0308ller"], {}, ["Müller"]),
        (["Mu\u0308ller"], {"unicode": "keep"}, ["Mu\u0308ller"]),
        (["\uff21\uff11", "\u00b2"], {"unicode": "NFKC"}, ["A1", "2"]),
        (["\uff21\uff11"], {}, ["\uff21\uff11"]),
        (["Straße A"], {"case": "fold"}, ["strasse a"]),
        (["Straße A"], {}, ["Straße A"]),
    ],
)
def test_ids_are_written_alike_by_stated_rules(written: Any, rules: Any, ids: list[str]) -> None:
    content = "id;x\n" + "".join(f"{cell};1\n" for cell in written)
    assert table_of(content, "x", rules=rules).ids.tolist() == ids


def test_an_id_is_written_alike_however_many_usual_ones_come_before() -> None:
    ids = [*map(str, range(3_000)), "12.0", "Mu\u0308ller"]
    assert normalised(ids, IdSettings())[2_999:] == ["2999", "12", "Müller"]


def test_ids_that_become_equal_or_were_rounded_are_refused() -> None:
    assert "line 4: the id '12' is also in line 2" in refusal("id,x\n12,1\n13,2\n12.0,3\n", "x")
    said = refusal("id,x\n4.91E+11,1\n7,2\n4.92E+11,3\n", "x")
    assert (
        "'4.91E+11' is a number that a spreadsheet has rounded; export it as text (2 such" in said
    )
    assert "'4,91e+11' is a number that a spreadsheet" in refusal("id;x\n4,91e+11;1\n", "x")
    said = refusal("id,x\nb,1\na,2\nb,3\na,4\n", "x")
    assert said.startswith("t.csv, line 4: the id 'b' is also in line 2, but ids")
    assert said.endswith("(2 such cells, such as line 5)")
    longer = refusal(f"id;x\n{chr(0xFDFA) * 20};1\n", "x", rules={"unicode": "NFKC"})
    assert longer.endswith("has 360 letters; an id has at most 256")
    with pytest.raises(
        JobError, match=r"task\.tables\.ids\.case = 'lower' is not one of keep, fold"
    ):
        VerticalJob.load(None, ["task.tables.ids.case=lower"])


@pytest.mark.parametrize(
    "written", ["\uff11.\uff12\uff13\uff25\uff0b\uff11\uff15", "1.23E\u207a15", "1\uff0e23E+15"]
)
def test_a_rounded_id_is_refused_in_the_form_that_the_rules_give_it(written: str) -> None:
    """Full-width characters and a raised plus sign, which only NFKC turns into a number."""
    content = f"id;x\nb;1\n{written};2\n"
    assert table_of(content, "x").ids.tolist() == ["b", written]
    assert refusal(content, "x", rules={"unicode": "NFKC"}) == (
        "t.csv, line 3: id = '1.23E+15' is a number that a spreadsheet has rounded; export it as "
        "text"
    )


def test_refused_ids_are_told_apart_and_nothing_hides_a_long_one() -> None:
    hidden = "\x01" + "5" * 3_000
    content = f"id;x\n;1\n{hidden};2\n;3\na\0;4\n{hidden};5\n7.5E+09;6\n{'z' * 256};7\n"
    shortened = "\\x01" + "5" * 52 + "..."
    assert refusal(content, "x") == (
        "t.csv has 4 problems: (1) line 2: id is empty (2 such cells, such as line 4); (2) line 3: "
        f"id = '{shortened} has 3,001 letters; an id has at most 256 (2 such cells, such as line "
        "6); (3) line 5: id = 'a\\x00' contains a NUL character, which an id must not; (4) line "
        "7: id = '7.5E+09' is a number that a spreadsheet has rounded; export it as text"
    )


def test_parties_with_other_rules_refuse_each_other() -> None:
    one, other = two_tables(str), two_tables(str).with_({"task.tables.ids.case": "fold"})
    assert [*differences(one.agreed(), other.agreed())] == [
        ("task.tables.ids.case", "'keep'", "'fold'")
    ]
    own = two_tables(str).with_({"task.tables.files.bank.separator": "semicolon"})
    assert not [*differences(one.agreed(), own.agreed())]


def two_tables(write: Any) -> VerticalJob:
    """Tables of a leader and a bank with 90 and 70 ids. The bank writes its ids by `write`."""
    draw = Seeded(36).generator()
    lead = "".join(f"k{n:03d},{n % 2},{draw.normal():.4f}\n" for n in range(90))
    bank = "".join(f"{write(f'k{n:03d}')};{draw.normal():.4f}\n".replace(".", ",")
                   for n in range(20, 90))  # fmt: skip
    Path("lead.csv").write_text(f"id,y,x\n{lead}")
    Path("bank.csv").write_text(f"id;z\n{bank}")
    files = {"lead": {"path": "lead.csv", "label": "y"}, "bank": {"path": "bank.csv"}}
    block = {"leader": "lead", "owners": ["lead", "bank"], "files": files}
    return VerticalJob.model_validate({"epochs": 1, "task": {"name": "tables", "tables": block}})


def test_a_run_says_how_it_has_read_each_file() -> None:
    said: list[str] = []
    train(two_tables(str), "run", say=said.append)
    expected = ["lead.csv: UTF-8, separated by comma",
                "bank.csv: UTF-8, separated by semicolon; decimal commas in z"]  # fmt: skip
    assert [sentence for sentence in said if ".csv" in sentence] == expected
    events = Path("run/bank", EVENTS).read_text()
    assert all(sentence in events for sentence in expected)


def test_near_misses_are_counted_where_all_ids_are_here() -> None:
    with pytest.raises(FewCommon) as caught:
        train(two_tables(str.upper), "run")
    assert str(caught.value) == (
        "no example is common to all of lead, bank; looser rules in task.tables.ids would "
        "make more ids common: 70 with case: fold, 70 with all of these"
    )
    folded = two_tables(str.upper).with_({"task.tables.ids.case": "fold"})
    assert train(folded, "run").metrics[-1]["test_accuracy"] >= 0
    said: list[str] = []

    def written(name: str) -> str:
        return name if name < "k022" else name.upper()

    train(two_tables(written), "few", say=said.append)
    few = next(sentence for sentence in said if "with case: fold" in sentence)
    trained = int((~held_out(np.array([written(f"k{n:03d}") for n in range(20, 90)]), 0.2)).sum())
    assert few.startswith(
        f"train: all parties have only 1 of the smallest table's {trained} ids; looser rules"
    )
    assert few.endswith("more ids common: 68 with case: fold, 68 with all of these")


def test_a_hint_changes_one_rule_and_keeps_the_others() -> None:
    rules = {"whole_numbers": True, "unicode": "NFKC", "leading_zeros": "drop"}
    ids = {"bank": ["K1", "007", "k2"]}
    assert hint(ids, IdSettings(**rules)).startswith(
        "looser rules in task.tables.ids would rewrite ids of bank: 2 with case: fold. All"
    )
    assert hint(ids, IdSettings(**rules, case="fold")) == ""
    both = {"whole_numbers": True, "leading_zeros": "drop"}
    assert "1 with unicode: NFKC, 1 with case: fold, 2 with all of these. All" in hint(
        {"bank": ["K1", "\u2460", "k2"]}, IdSettings(**both)
    )


def test_between_machines_a_party_counts_only_its_own_ids_and_sends_none_of_it() -> None:
    """The error that the other party receives must not say how this party writes its ids."""
    task = tables("unread.csv")
    ids = {"lead": np.array([f"k{n}" for n in range(9)]), "bank": np.array(["K1", "K02", "k3 x"])}
    parties = {}
    for name, own in ids.items():
        hint = task.id_hint({name: own})
        held = {"train": own, "test": np.array([f"{name}-t"])}
        parties[name] = Standing(name, {}, {}, held, id_hint=hint, run=bytes(16 * (name == "lead")))
    assert "2 with case: fold" in parties["bank"].id_hint
    assert parties["lead"].id_hint == ""
    swapped = {"lead": replace(parties["lead"], id_hint="9 with case: fold")}
    with pytest.raises(ExchangeError) as caught:
        drive_together({
            "lead": handshake.lead(swapped["lead"], ("bank",), attempt=1, purpose="train",
                                   order_seed=1),
            "bank": handshake.follow(parties["bank"], "lead"),
        })  # fmt: skip
    assert str(caught.value).endswith("; 9 with case: fold")
    assert caught.value.told == "no example is common to all of lead, bank"


# Two readers


cells = st.text(st.sampled_from('ab,;"\n\r \té\u00a0.1'), max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=6), st.booleans())
def test_both_readers_give_the_same_cells(rows: list[tuple[str, str]], raw: bool) -> None:
    """Native code reads a block as Python does, or leaves it to Python."""
    pytest.importorskip("numba")
    file = io.StringIO(newline="")
    csv.writer(file).writerows((f"r{at}", *row) for at, row in enumerate(rows))
    text = file.getvalue()
    if raw:  # what no writer would write
        text = "".join(f"r{at},{a},{b}\n" for at, (a, b) in enumerate(rows))
    both = []
    for slowly in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if slowly:
                patch.setattr(csv_block, "read", lambda *given: None)
            try:
                table = table_of(f"id,v,w\n{text}", words=("v", "w"), separator="comma", lacks=True)
                words = [[table.known[n][c] for c in table.codes(n)] for n in ("v", "w")]
                both.append([table.ids.tolist(), words, table.places.tolist()])
            except DataInvalid as error:
                both.append(str(error))
    assert both[0] == both[1]


ODD_NUMBERS = [
    "1.234", "1,234", "1_000", "1e3", " 5", "+5", "0x10", "NaN", "-0", "\u0661\u0662", "1.000",
    "1.", ".5", "1.5", "1,5", "007", "1e-3", "inf", "1e400", "nan(7)", "-NaN", "1.234.567",
    "1.234,5", "0.125", "0,125", "1 000", "12345678901234567890", "2024-12-31", "2024-2-1",
    "0000-01-01", "2024-02-30", "12:30", "ja", "NULL", "null ", "1d5", "01", "--1", "5%", "-",
    "0X10", "\u00a01.234",
]  # fmt: skip


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize("usual", [None, "7", "2.5", "0", "2024-02-29"])
def test_both_readers_read_odd_numbers_alike(
    usual: str | None, separator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone in a column, and in a block that follows a block of usual cells."""
    pytest.importorskip("numba")
    monkeypatch.setattr(csv_format, "_AT_ONCE", 1 << 8)
    before = [[f"r{at}", usual] for at in range(0 if usual is None else 60)]
    for odd in ODD_NUMBERS if usual != "0" else ("ja", "01", "1.000", "-0", "NULL"):
        file = io.StringIO()
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerows([["id", "x"], *before, ["z", odd]])
        both: list[Any] = []
        for reader in (csv_block.read, lambda *given: None):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(csv_block, "read", reader)
                try:
                    table = table_of(file.getvalue(), "x", lacks=True)
                    numbers = (table.numbers("x") + 0.0).tolist()  # without the sign of -0
                    both.append([repr(numbers), table.said, table.kinds])
                except DataInvalid as error:
                    both.append(str(error))
        assert both[0] == both[1], odd


@pytest.mark.parametrize(
    ("block", "rows"),
    [
        ("a,1\nb,2\n", 2), ("a,1\r\nb,2", 2), ('"a","1"\n"b",2\n', 2), ('a,""\nb,2\n', 2),
        ('a,"1\n"\n', None), ('a,"1"2\n', None), ('a,"1""2"\n', None), ('a,1"2"\n', None),
        ("a,1\n\nb,2\n", None), ("a,1\rb,2\r", None), ("a,1\nb\n", None), ("a,1,2\n", None),
        ('a,"1\n', None), (f"a,{'1' * 140_000}\n", None),
    ],
)  # fmt: skip
def test_native_code_reads_only_blocks_that_leave_no_choice(block: str, rows: int | None) -> None:
    pytest.importorskip("numba")
    from fedveil.tasks.tables.csv_format import CsvFormat

    found = CsvFormat("t.csv", "utf-8-sig", ",", None)
    read_ = csv_block.read(found, ["id", "x"], ["id", "x"], block)
    assert (None if read_ is None else len(read_.places)) == rows


# Files made to hang or to fill the memory


@pytest.mark.parametrize(
    "content",
    [
        b'id,x\n"' + b"a" * 3_000_000,
        b"id,x\n" + b"a,1\r" * 20_000 + b'"',
        b"id,x\na," + b"1" * 100_000 + b"\n",
        b"id,x\na," + b"1.111." * 20_000 + b"\n",
        b"id,x\na," + b"9" * 900 + b"e" + b"9" * 90 + b"\n",
        b";" * 90_000 + b"\n" + b"," * 90_000 + b"\n",
        b"\xff\xfe" + b"\0\xd8" * 100_000,
        b"id,x\n" + b"\n" * 300_000,
    ],
)
def test_no_file_makes_a_reader_hang(content: bytes) -> None:
    with bounded():
        assert refusal(content, "x").startswith("t.csv")


def test_a_line_without_an_end_in_utf16_is_refused() -> None:
    """Play a file of gigabytes, which takes no room on the disk."""
    with Path("t.csv").open("wb") as file:
        file.write("id,x\na,1\n".encode("utf-16-le"))
        file.truncate(1 << 32)
    with bounded():
        said = refusal_of("t.csv", encoding="utf-16")
    assert said.startswith("t.csv: line 3 has more than 16,777,216 characters")


def refusal_of(path: str, **keys: Any) -> str:
    with pytest.raises(DataInvalid) as caught:
        read(path, Wanted("id", ("x",), reading=ReadingSettings(**keys)))
    return str(caught.value)


def test_an_empty_column_of_a_stated_kind_decides_for_no_other() -> None:
    content = "id;d;e\n1;;01/02/2024\n2;;03/04/2024\n"
    said = refusal(content, "d", "e", lacks=True, kinds={"d": "month-first"})
    assert said.startswith("t.csv: e = '01/02/2024' in line 2 has two readings; write files.bank.")
    table = table_of(content.replace("1;;", "1;5/6/2024;"), "d", "e", lacks=True,
                     kinds={"d": "month-first"})  # fmt: skip
    assert table.numbers("e").tolist() == [19724, 19786]


def test_every_text_of_a_known_list_is_read_in_any_case() -> None:
    missing = ["", "NA", "n/a", "#N/A", "NaN", "null", "None", "<na>", "K.A.", "n.v."]
    assert [FORMS["point"](cell) for cell in missing] == [None] * len(missing)
    content = "id\tx\n" + "".join(f"{row}\t{cell}\n" for row, cell in enumerate([*missing, "7"]))
    for empty in ([], ["unknown"]):  # as plain numbers, and as texts
        found = table_of(content, "x", lacks=True, empty=empty).numbers("x")
        np.testing.assert_array_equal(found, [NAN] * len(missing) + [7])
    truths = {"yes": 1, "TRUE": 1, "Ja": 1, "y": 1, "J": 1, "1": 1}
    truths |= {"no": 0, "False": 0, "NEIN": 0, "n": 0, "0": 0}
    assert {cell: FORMS["boolean"](cell) for cell in truths} == truths
    names = ["Jan", "feb", "MAR", "Apr", "may", "JUN", "Jul", "aug", "SEP", "Oct", "nov", "DEC"]
    for month, name in enumerate(names, 1):
        assert FORMS["iso"](f"03{name}2023") == FORMS["iso"](f"2023-{month:02}-03")
    for mark in "'’_ \u00a0\u2009\u202f":
        assert FORMS["point"](f"1{mark}234.5") == FORMS["comma"](f"1{mark}234,5") == 1234.5


@pytest.mark.parametrize(
    "begin", [b"PK\x03\x04", b"\x1f\x8b", b"PAR1", b"%PDF", b"\xd0\xcf\x11\xe0", b"{\\rtf"]
)
def test_a_file_of_another_kind_is_named_as_that(begin: bytes) -> None:
    kinds = {b"PK": "Excel", b"\x1f\x8b": "gzip", b"PA": "Parquet", b"%P": "PDF",
             b"\xd0\xcf": "old Excel", b"{\\": "rich text"}  # fmt: skip
    said = refusal(begin + b",x\na,1\n", "x")
    assert kinds[begin[:2]] in said
    assert said.endswith(", not CSV")


def test_utf16_that_is_stated_has_the_byte_order_of_its_letters() -> None:
    for codec in ("utf-16-le", "utf-16-be"):
        table = table_of("id,x\né,1\n".encode(codec), "x", encoding="utf-16")
        assert table.ids.tolist() == ["é"]

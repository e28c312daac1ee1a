"""Reads a table from CSV in UTF-8 with a header. Empty lines are skipped."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

from fedveil.base.untrusted import MOST_STREAMED_BYTES, lines, opened
from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import shown
from fedveil.tasks.tables.table_piece import Piece

Record: TypeAlias = tuple[int, list[str]]

#: A table of all transcripts of a genome has some 60,000 columns.
MOST_COLUMNS: Final = 100_000
#: A row of `MOST_COLUMNS` numbers of 17 digits has about 2 million characters.
MOST_LINE_CHARACTERS: Final = 1 << 24
#: The limits of rows and cells in memory at a time: 2 million cells of some 60 bytes each.
_AT_ONCE, _CELLS_AT_ONCE = 8192, 1 << 21


class _Records(Piece):
    """A piece of a CSV file."""

    unit = "line"

    def __init__(self, path: str, columns: Sequence[str], records: Sequence[Record]) -> None:
        self.path, self._records = path, records
        self._place = {name: place for place, name in enumerate(columns)}
        self.places = [line for line, _ in records]

    def cells(self, column: str) -> list[str]:
        place = self._place[column]
        return [cells[place].strip() for _, cells in self._records]


def header(path: str) -> list[str]:
    with _opened(path) as reader:
        return _header(path, reader)


def pieces(path: str) -> Iterator[Piece]:
    with _opened(path) as reader:
        columns = _header(path, reader)
        records = _records(path, reader, len(columns))
        rows = max(1, min(_AT_ONCE, _CELLS_AT_ONCE // len(columns)))
        while chunk := list(islice(records, rows)):
            yield _Records(path, columns, chunk)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    reader: Any = None
    try:
        with reading(Path(path)), opened(path, MOST_STREAMED_BYTES) as raw:
            file = io.TextIOWrapper(raw, "utf-8-sig", newline="")
            reader = csv.reader(_lines(path, file), strict=True)
            yield reader
    except UnicodeDecodeError:
        raise DataInvalid(f"{path} is not UTF-8 text") from None
    except csv.Error as error:
        raise DataInvalid(f"{path}, line {reader.line_num} is not valid CSV: {error}") from None


def _lines(path: str, file: TextIO) -> Iterator[str]:
    """Yield the lines of `file`. Raises DataInvalid for a line that is too long."""
    try:
        yield from lines(file, MOST_LINE_CHARACTERS)
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise DataInvalid(f"{path}: {error}; a row of a table must have fewer") from None


def _header(path: str, reader: Any) -> list[str]:
    columns = [name.strip() for name in next(reader, [])]
    if not columns:
        raise DataInvalid(f"{path} has no header: its first line names the columns")
    if len(columns) > MOST_COLUMNS:
        raise DataInvalid(
            f"{path} has {len(columns):,} columns; the limit is {MOST_COLUMNS:,}: leave "
            f"out those that no party trains on"
        )
    known = set[str]()
    for number, name in enumerate(columns):
        if not name:
            raise DataInvalid(f"{path}: column {number + 1} of the header has no name")
        if name in known:
            raise DataInvalid(f"{path}: the header names {shown(name)} twice")
        known.add(name)
    return columns


def _records(path: str, reader: Any, width: int) -> Iterator[Record]:
    """Yield each record: the number of its first line, and its cells."""
    line = reader.line_num + 1
    for cells in reader:
        if cells:
            if len(cells) != width:
                raise DataInvalid(
                    f"{path}, line {line} has {len(cells)} cells, but the header has {width}"
                )
            yield line, cells
        line = reader.line_num + 1

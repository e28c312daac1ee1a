"""A table as CSV in UTF-8 with a header; lines without anything are passed over."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import shown
from fedveil.tasks.tables.table_piece import Piece

Record: TypeAlias = tuple[int, list[str]]

_AT_ONCE = 8192


class _Records(Piece):
    """Some of a file's records."""

    unit = "line"

    def __init__(self, path: str, columns: Sequence[str], records: Sequence[Record]) -> None:
        self.path, self._columns, self._records = path, columns, records
        self.places = [line for line, _ in records]

    def cells(self, column: str) -> list[str]:
        place = self._columns.index(column)
        return [cells[place].strip() for _, cells in self._records]


def header(path: str) -> list[str]:
    with _opened(path) as reader:
        return _header(path, reader)


def pieces(path: str) -> Iterator[Piece]:
    with _opened(path) as reader:
        columns = _header(path, reader)
        records = _records(path, reader, len(columns))
        while chunk := list(islice(records, _AT_ONCE)):
            yield _Records(path, columns, chunk)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    reader: Any = None
    try:
        with reading(Path(path)), Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            yield reader
    except UnicodeDecodeError:
        raise DataInvalid(f"{path} is not UTF-8 text") from None
    except csv.Error as error:
        raise DataInvalid(f"{path}, line {reader.line_num}: {error}, this is not CSV") from None


def _header(path: str, reader: Any) -> list[str]:
    columns = [name.strip() for name in next(reader, [])]
    if not columns:
        raise DataInvalid(f"{path} has no header: its first line names the columns")
    for number, name in enumerate(columns):
        if not name:
            raise DataInvalid(f"{path}: column {number + 1} of the header has no name")
        if name in columns[:number]:
            raise DataInvalid(f"{path}: the header names {shown(name)} twice")
    return columns


def _records(path: str, reader: Any, width: int) -> Iterator[Record]:
    """The line on which each record begins, and its cells."""
    line = reader.line_num + 1
    for cells in reader:
        if cells:
            if len(cells) != width:
                raise DataInvalid(
                    f"{path}, line {line} has {len(cells)} cells, and the header has {width}"
                )
            yield line, cells
        line = reader.line_num + 1

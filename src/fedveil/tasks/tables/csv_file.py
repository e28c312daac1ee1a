"""One party's table as a file: CSV with a header, every cell checked where it is read.

Spaces around a cell do not count, and lines without anything are passed over. What is wrong is a
sentence with the file, the line and the column.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import plain, shown

Floats: TypeAlias = npt.NDArray[np.float64]
Record: TypeAlias = tuple[int, list[str]]

#: How a number that is not there is written, besides as nothing.
_NO_NUMBER = ("", "na", "nan")
_AT_ONCE = 8192
_SHOWN_COLUMNS = 20


@dataclass(frozen=True)
class Wanted:
    """Which columns are read, and as what.

    A cell of those in `may_lack` may be empty; then a number is NaN and a word is "".
    """

    id: str
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    may_lack: Collection[str] = ()


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a file that were wanted, row by row as they stand; no id is there twice."""

    path: str
    ids: npt.NDArray[np.str_]
    lines: npt.NDArray[np.int64]
    numbers: dict[str, Floats]
    words: dict[str, npt.NDArray[np.object_]]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, chosen: npt.NDArray[Any]) -> Table:
        return replace(
            self,
            ids=self.ids[chosen],
            lines=self.lines[chosen],
            numbers={name: column[chosen] for name, column in self.numbers.items()},
            words={name: column[chosen] for name, column in self.words.items()},
        )

    def place(self, row: int) -> str:
        return f"{self.path}, line {self.lines[row]}"


def header(path: str) -> list[str]:
    """The names of the columns, none twice and none empty."""
    with _opened(path) as reader:
        return _header(path, reader)


def check_known(path: str, wanted: Collection[str], columns: Collection[str], key: str) -> None:
    """Refuse a name that no column has; `key` is where it comes from."""
    for name in wanted:
        if name not in columns:
            first = ", ".join(plain(column) for column in islice(columns, _SHOWN_COLUMNS))
            more = ", ..." if len(columns) > _SHOWN_COLUMNS else ""
            raise DataInvalid(
                f"{path} has no column {shown(name)}, which {key} names; its columns are "
                f"{first}{more}"
            )


def read(path: str, wanted: Wanted) -> Table:
    """The file's wanted columns, which its header must have."""
    ids: dict[str, int] = {}
    numbers: dict[str, list[Floats]] = {name: [] for name in wanted.numbers}
    words: dict[str, list[str]] = {name: [] for name in wanted.words}
    with _opened(path) as reader:
        columns = _header(path, reader)
        check_known(path, (wanted.id, *numbers, *words), columns, "the job")
        records = _records(path, reader, len(columns))
        while chunk := list(islice(records, _AT_ONCE)):
            piece = _Piece(path, columns, chunk)
            piece.add_ids(wanted.id, ids)
            for name, found in numbers.items():
                found.append(piece.numbers(name, name in wanted.may_lack))
            for name, texts in words.items():
                texts += piece.words(name, name in wanted.may_lack)
    if not ids:
        raise DataInvalid(f"{path} has a header and no rows")
    return Table(
        path=path,
        ids=np.array(list(ids), np.str_),
        lines=np.array(list(ids.values()), np.int64),
        numbers={name: np.concatenate(found) for name, found in numbers.items()},
        words={name: np.array(texts, np.object_) for name, texts in words.items()},
    )


class _Piece:
    """Some of a file's records, a column at a time."""

    def __init__(self, path: str, columns: Sequence[str], records: Sequence[Record]) -> None:
        self._path, self._columns, self._records = path, columns, records

    def add_ids(self, column: str, ids: dict[str, int]) -> None:
        """Note the line of every id; `ids` are those of the lines before."""
        for (line, _), name in zip(self._records, self.words(column, False), strict=True):
            if name in ids:
                raise DataInvalid(
                    f"{self._path}, line {line}: the {column} {shown(name)} is that of line "
                    f"{ids[name]} too, an id stands for one row"
                )
            ids[name] = line

    def words(self, column: str, may_lack: bool) -> list[str]:
        cells = self._cells(column)
        if not may_lack and "" in cells:
            self._refuse(column, cells.index(""), "")
        return cells

    def numbers(self, column: str, may_lack: bool) -> Floats:
        """Its cells as finite numbers, or NaN where they may lack."""
        cells = self._cells(column)
        try:
            found = np.array([float(cell) for cell in cells])
        except ValueError:
            found = np.array([self._number(column, row, cell) for row, cell in enumerate(cells)])
        if np.isinf(found).any():
            row = int(np.isinf(found).argmax())
            self._refuse(column, row, cells[row])
        if not may_lack and np.isnan(found).any():
            self._refuse(column, int(np.isnan(found).argmax()), "")
        return found

    def _number(self, column: str, row: int, cell: str) -> float:
        if cell.lower() in _NO_NUMBER:
            return math.nan
        try:
            return float(cell)
        except ValueError:
            self._refuse(column, row, cell)

    def _cells(self, column: str) -> list[str]:
        place = self._columns.index(column)
        return [cells[place].strip() for _, cells in self._records]

    def _refuse(self, column: str, row: int, cell: str) -> NoReturn:
        where = f"{self._path}, line {self._records[row][0]}: {plain(column)}"
        if cell == "":
            raise DataInvalid(f"{where} is empty")
        raise DataInvalid(f"{where} = {shown(cell)} is not a finite number")


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

"""Reads one party's table from a CSV or Parquet file in pieces, and checks every cell.

Spaces around a text are ignored, and ids and words are texts whatever type they have in the file.
An error is a sentence with the file, the line or row, and the column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Float64s, Int64s
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import plain, shown
from fedveil.tasks.tables import csv_file, parquet_file
from fedveil.tasks.tables.disk_columns import Spool
from fedveil.tasks.tables.table_piece import Piece

_SHOWN_COLUMNS = 20


@dataclass(frozen=True)
class Wanted:
    """The columns to read, by kind.

    Cells of the columns in `may_lack` may be empty. An empty number becomes NaN, an empty word "".
    """

    id: str
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    may_lack: Collection[str] = ()


@dataclass(frozen=True, eq=False)
class Table:
    """The wanted columns of a file, in the order of its rows. No two rows have the same id.

    The columns are on disk. `known` has the distinct words of each column of words.
    """

    path: str
    unit: str
    ids: npt.NDArray[np.str_]
    places: Int64s
    known: dict[str, list[str]]
    spool: Spool
    chosen: Int64s | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def numbers(self, column: str) -> Float64s:
        return self._column(column)

    def codes(self, column: str) -> npt.NDArray[np.int32]:
        """Return, for each row, the index of its word in `known`."""
        return self._column(column)

    def rows(self, chosen: npt.NDArray[np.bool_]) -> Table:
        """Return the rows of a whole table for which the mask `chosen` is True."""
        at = np.flatnonzero(chosen)
        return replace(self, ids=self.ids[at], places=self.places[at], chosen=at)

    def place(self, row: int) -> str:
        return f"{self.path}, {self.unit} {self.places[row]}"

    def _column(self, name: str) -> Array:
        column = self.spool.column(name)
        return column if self.chosen is None else column[self.chosen]


def header(path: str) -> list[str]:
    """Return the names of the file's columns.

    Raises DataInvalid if one is empty or occurs twice.
    """
    return parquet_file.header(path) if _is_parquet(path) else csv_file.header(path)


def check_known(path: str, wanted: Collection[str], columns: Collection[str], key: str) -> None:
    """Raise DataInvalid if a name in `wanted` is not in `columns`.

    `key` is the setting of `wanted`.
    """
    known = set(columns)
    for name in wanted:
        if name not in known:
            refuse_semicolons(path, columns)
            first = ", ".join(plain(column) for column in islice(columns, _SHOWN_COLUMNS))
            more = ", ..." if len(columns) > _SHOWN_COLUMNS else ""
            raise DataInvalid(
                f"{path} has no column {shown(name)}, which {key} names; its columns are "
                f"{first}{more}"
            )


def refuse_semicolons(path: str, columns: Collection[str]) -> None:
    """Raise DataInvalid if the file's only column is a header separated by semicolons."""
    if len(columns) > 1 or not any(";" in column for column in columns):
        return
    raise DataInvalid(
        f"{path} is separated by semicolons, and a table is separated by commas. Convert it with: "
        f"python -c \"import pandas; pandas.read_csv('{path}', sep=';').to_csv('{path}', "
        f'index=False)"'
    )


def read(path: str, wanted: Wanted) -> Table:
    """Read the wanted columns of a file, which must have all of them, piece by piece."""
    names = (wanted.id, *wanted.numbers, *wanted.words)
    check_known(path, names, header(path), "the job")
    spool, ids, places = Spool(), [], []
    known: dict[str, dict[str, int]] = {name: {} for name in wanted.words}
    unit = ""
    for piece in _pieces(path, names):
        unit = piece.unit
        ids.append(np.array(piece.ids(wanted.id), np.str_))
        places.append(np.array(piece.places, np.int64))
        for name in wanted.numbers:
            spool.append(name, piece.numbers(name, name in wanted.may_lack))
        for name, code in known.items():
            cells = piece.words(name, name in wanted.may_lack)
            codes = [code.setdefault(cell, len(code)) for cell in cells]
            spool.append(name, np.array(codes, np.int32))
    if not ids:
        raise DataInvalid(f"{path} has a header but no rows")
    words = {name: list(code) for name, code in known.items()}
    table = Table(path, unit, np.concatenate(ids), np.concatenate(places), words, spool)
    _check_ids(table, wanted.id)
    return table


def _pieces(path: str, names: Collection[str]) -> Iterator[Piece]:
    return parquet_file.pieces(path, names) if _is_parquet(path) else csv_file.pieces(path)


def _is_parquet(path: str) -> bool:
    return Path(path).suffix == parquet_file.SUFFIX


def _check_ids(table: Table, column: str) -> None:
    order = np.argsort(table.ids, kind="stable")
    again = np.flatnonzero(table.ids[order][1:] == table.ids[order][:-1])
    if len(again):
        second = order[again + 1].min()
        first = int((table.ids == table.ids[second]).argmax())
        raise DataInvalid(
            f"{table.place(second)}: the {column} {shown(str(table.ids[second]))} is also "
            f"in {table.unit} {table.places[first]}, but ids must be distinct"
        )

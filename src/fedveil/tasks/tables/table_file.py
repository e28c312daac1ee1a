"""Reads one party's table from a CSV or Parquet file in pieces, and checks every cell.

Spaces around a text are ignored. Ids and words are texts, whatever type they have in the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Float64s, Int64s
from fedveil.base.untrusted import Version, version_of
from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import plain, shown
from fedveil.tasks.tables import csv_file, parquet_file
from fedveil.tasks.tables.cell_forms import Kind, kind_of
from fedveil.tasks.tables.csv_format import CsvFormat, find_format, lone_format
from fedveil.tasks.tables.disk_columns import Spool
from fedveil.tasks.tables.id_column import IdColumn
from fedveil.tasks.tables.number_column import Cells, NumberColumn, settle
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_piece import Piece
from fedveil.vertical.task_settings import IdSettings, ReadingSettings

_SHOWN_COLUMNS = 20
_DEFAULT, _RULES = ReadingSettings(), IdSettings()


@dataclass(frozen=True)
class Wanted:
    """The columns to read, by kind. If `id` is None, rows have no ids.

    Columns in `may_lack` can have empty cells. An empty number becomes NaN, an empty word "".
    `reading` says how the file is written, `rules` how ids are normalised. `place` is the path of
    the file's settings in the job, for messages. If `apart` is True, no row may affect how another
    is read. The file must then have a fixed format (`lone_format`), and nothing is guessed.
    """

    id: str | None
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    may_lack: Collection[str] = ()
    reading: ReadingSettings = _DEFAULT
    rules: IdSettings = _RULES
    place: str | None = None
    apart: bool = False


@dataclass(frozen=True, eq=False)
class Table:
    """The requested columns of a file, in the order of its rows. Ids are distinct.

    `places` has the rows' numbers in the file: line numbers if `unit` is "line", row numbers if it
    is "row". `spool` stores the columns on disk: numbers, and indices of words in `known`, the
    distinct words of each word column. `said` has sentences on how the file was read, and `kinds`
    the kind of content of each number column. `chosen` has the indices of selected rows (None: all
    rows).
    """

    path: str
    unit: str
    ids: npt.NDArray[np.str_]
    places: Int64s
    known: dict[str, list[str]]
    spool: Spool
    said: Sequence[str] = ()
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    chosen: Int64s | None = None
    _last: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.places)

    def numbers(self, column: str) -> Float64s:
        return self._column(column)

    def codes(self, column: str) -> npt.NDArray[np.int32]:
        """Return the index of each row's word in `known[column]`."""
        return self._column(column)

    def rows(self, chosen: npt.NDArray[np.bool_]) -> Table:
        """Return the rows in the mask `chosen`. This table must be the whole file, no selection."""
        at = np.flatnonzero(chosen)
        return replace(self, ids=self.ids[at], places=self.places[at], chosen=at, _last={})

    def within(self, first: int, count: int) -> tuple[slice, Int64s]:
        """Find the rows that are both in this table and in a block of the file.

        The block is the `count` rows of the file from row `first` on. Returns the indices of the
        common rows in this table, and their indices in the block.
        """
        if self.chosen is None:
            return slice(first, first + count), np.arange(count)
        start, stop = np.searchsorted(self.chosen, [first, first + count])
        return slice(start, stop), self.chosen[start:stop] - first

    def place(self, row: int) -> str:
        return f"{self.path}, {self.unit} {self.places[row]}"

    def _column(self, name: str) -> Array:
        """Return the selected rows of a column. The most recently read column is cached."""
        found = self._last.get(name)
        if found is None:
            found = self.spool.read(name)
            found = found if self.chosen is None else found[self.chosen]
            self._last.clear()
            self._last[name] = found
        return found


def header(
    path: str,
    settings: ReadingSettings = _DEFAULT,
    place: str | None = None,
    *,
    apart: bool = False,
) -> list[str]:
    """Return the file's column names. Raises DataInvalid if a name is empty or repeated.

    `settings` say how the file is written, and `place` is their path in the job, for messages.
    `apart` is as in `Wanted`.
    """
    if is_parquet(path):
        return parquet_file.header(path)
    wanted = Wanted(None, reading=settings, place=place, apart=apart)
    return csv_file.header(_csv_format(path, wanted))


def file_version(path: str) -> Version:
    """Return the version of a file, with which `read` recognises that the file has changed."""
    with reading(Path(path)):
        return version_of(path)


def check_known(path: str, named: Mapping[str, Collection[str]], columns: Collection[str]) -> None:
    """Raise DataInvalid if a setting names a column that is not in `columns`.

    `path` is the table's file, and `columns` its columns. `named` maps settings to the columns that
    they name.
    """
    known = set(columns)
    first = ", ".join(plain(column) for column in islice(columns, _SHOWN_COLUMNS))
    more = ", ..." if len(columns) > _SHOWN_COLUMNS else ""
    missing = [
        f"no column {shown(name)}, which {key} names"
        for key, names in named.items()
        for name in names
        if name not in known
    ]
    if missing:
        raise DataInvalid(f"{path} has {', and '.join(missing)}; its columns are {first}{more}")


def read(
    path: str, wanted: Wanted, refusals: Refusals | None = None, version: Version | None = None
) -> Table:
    """Read the requested columns of a file. Raises DataInvalid with all problems of its cells.

    Problems go to `refusals` instead, if given. The table can then have invalid cells. Raises
    DataUnavailable if the file changes while it is read, or no longer has this `version`.
    """
    found = Refusals(path) if refusals is None else refusals
    source = _Source(path, wanted, file_version(path) if version is None else version)
    names = (*([wanted.id] if wanted.id else ()), *wanted.numbers, *wanted.words)
    check_known(path, {"the job": names}, source.columns)
    spool = Spool()
    ids = IdColumn(wanted.id, wanted.rules, found)
    cells = Cells(wanted.reading.empty)
    numbers = [
        NumberColumn(
            name, wanted.reading, spool, found, name in wanted.may_lack, cells, wanted.apart
        )
        for name in wanted.numbers
    ]
    words = [_WordColumn(name, wanted, spool, found) for name in wanted.words]
    columns: list[NumberColumn | _WordColumn] = [*numbers, *words]
    places = []
    for piece in source.pieces(names or source.columns[:1], found):
        found.unit = piece.unit
        places.append(_row_numbers(piece.places))
        ids.add(piece)
        for column in columns:
            column.add(piece)
    if not places and not len(found):
        raise DataInvalid(f"{path} has a header but no rows")
    forms = settle(numbers, wanted.place) if places else {}
    ids.check_distinct(places)
    if refusals is None:
        found.check()
    known = {column.name: list(column.known) for column in words}
    rows = np.concatenate(places) if places else np.empty(0, np.int64)
    said = [f"{path}: {'; '.join([source.said, *_told(forms)])}"]
    kinds = {name: kind_of(form) for name, form in forms.items()}
    return Table(path, found.unit, ids.array(), rows, known, spool, said, kinds)


def _row_numbers(places: Sequence[int]) -> Int64s:
    if isinstance(places, range):  # np.array would read it number by number
        return np.arange(places.start, places.stop)
    return np.array(places, np.int64)


def _told(forms: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences that tell the user which number columns have unusual forms, such as dates."""
    kinds = {
        "comma": "decimal commas in", "iso": "dates in", "day-first": "dates (day first) in",
        "month-first": "dates (month first) in", "time": "times in", "boolean": "truth values in",
    }  # fmt: skip
    for form, said in kinds.items():
        names = [plain(name) for name, found in forms.items() if found == form]
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            yield f"{said} {', '.join(names[:5])}{more}"


class _WordColumn:
    """Reads one column of words. `known` maps each word to its index."""

    def __init__(self, name: str, wanted: Wanted, spool: Spool, refusals: Refusals) -> None:
        self.name, self.known = name, dict[str, int]()
        self._spool, self._refusals, self._lacks = spool, refusals, name in wanted.may_lack
        self._empty = frozenset(wanted.reading.empty)

    def add(self, piece: Piece) -> None:
        codes, words = piece.coded(self.name)
        kept = ["" if word in self._empty else word for word in words]
        own = np.array([self.known.setdefault(word, len(self.known)) for word in kept], np.int32)
        if not self._lacks and "" in kept:
            rows = np.flatnonzero(np.array([not word for word in kept])[codes])
            places = [piece.places[row] for row in rows[:3]]
            said = f": {plain(self.name)} is empty"
            if len(rows):
                self._refusals.rows(self.name, "empty", said, places, len(rows))
        self._spool.append([self.name], own[codes] if len(own) else np.empty(0, np.int32))


class _Source:
    """One version of a file: its column names, its rows, and a sentence on how it is read."""

    def __init__(self, path: str, wanted: Wanted, version: Version) -> None:
        self._path, self._version = path, version
        self._csv: CsvFormat | None = None
        if is_parquet(path):
            self.columns, self.said = parquet_file.header(path, version), "Parquet"
            texts = {*wanted.words, *([wanted.id] if wanted.id else ())}
            self._types = (wanted.numbers, texts)
        else:
            self._csv = _csv_format(path, wanted, version)
            self.columns, self.said = csv_file.header(self._csv), self._csv.said

    def pieces(self, names: Sequence[str], refusals: Refusals) -> Iterator[Piece]:
        if self._csv is not None:
            return csv_file.pieces(self._csv, list(dict.fromkeys(names)), refusals)
        parquet_file.check_types(self._path, *self._types, self._version)
        return parquet_file.pieces(self._path, names, self._version)


def _csv_format(path: str, wanted: Wanted, version: Version | None = None) -> CsvFormat:
    if wanted.apart:
        return lone_format(path, version)
    return find_format(path, wanted.reading, wanted.place, version)


def is_parquet(path: str) -> bool:
    return Path(path).suffix == parquet_file.SUFFIX

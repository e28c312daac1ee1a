"""The clients' rows as a table with named columns, from files, mappings, arrays or a Dataset."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, time
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Float64s, without_na
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import plain, shown
from fedveil.tasks.tables import table_file
from fedveil.tasks.tables.refusals import Refusals

#: An array of strings or, if one of them is long, of Python objects (`_as_words`).
Words: TypeAlias = npt.NDArray[Any]
#: The length above which a text is stored as a Python object. In NumPy's arrays of strings, every
#: entry needs as much memory as the longest string.
_LONG = 256
#: File formats that need no note for the user.
_USUAL = ("UTF-8, separated by comma", "Parquet")
_NO_NUMBER = ("", "na", "nan")
_SHOWN = 20
#: Types of cells, each with the kind (`dtype.kind`) of the array that NumPy makes of a list of such
#: cells without changing any. If an integer has more than 64 bits, the array has a different kind.
_ALIKE = {bool: "b", int: "i", float: "f"}
#: A client's own log. Only this log says how many rows and values were left out.
log = logging.getLogger("fedveil.client")


class Table(ABC):
    """Rows with named columns. A column can be read as numbers, or as texts ("words").

    `numbers(column)` and `words(column)` return a column. In a column of numbers, a cell that is
    neither missing nor a finite number is an error. If the table was created with `apart=True`, the
    cell counts as missing instead, so that a single row cannot make all other rows unreadable.
    """

    #: The file, or the function that returned the columns, for messages.
    name: str
    #: Notes for the user about the guessed format of a file, such as its separator.
    said: Sequence[str] = ()
    columns: Sequence[str]

    def __init__(self, *, apart: bool = False) -> None:
        self.apart = apart
        # Cached: a question reads a column for its cells and for each condition.
        self.numbers = lru_cache(maxsize=64)(self._checked_numbers)
        self.words = lru_cache(maxsize=64)(self._checked_words)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _numbers(self, column: str) -> Float64s:
        """Return a column as numbers. NaN stands for a missing number.

        Raises `DataInvalid` for a cell that is neither missing nor a finite number. If the table
        was created with `apart=True`, such a cell counts as missing instead.
        """

    @abstractmethod
    def _words(self, column: str) -> Words:
        """Return a column as words. "" stands for a missing word."""

    def _checked_numbers(self, column: str) -> Float64s:
        """Return a column as finite numbers. NaN stands for a missing number.

        Raises `DataInvalid` if the table has no such column, or for an invalid cell (see
        `_numbers`).
        """
        self._known(column)
        return self._numbers(column)

    def _checked_words(self, column: str) -> Words:
        """Return a column as stripped words. "" stands for a missing word.

        Raises `DataInvalid` if the table has no such column.
        """
        self._known(column)
        return self._words(column)

    def _known(self, column: str) -> None:
        if column not in self.columns:
            listed = ", ".join(plain(name) for name in self.columns[:_SHOWN])
            more = ", ..." if len(self.columns) > _SHOWN else ""
            raise DataInvalid(
                f"{self.name} has no column {shown(column)}; its columns are {listed}{more}"
            )


class FileTable(Table):
    """A CSV file with a header, or a Parquet file. Reads each column when it is first needed."""

    def __init__(self, path: str, *, apart: bool = False) -> None:
        super().__init__(apart=apart)
        self.name, self._version = path, table_file.file_version(path)
        self.columns = table_file.header(path, apart=apart)
        self._rows = len(self._read())

    def __len__(self) -> int:
        return self._rows

    def _numbers(self, column: str) -> Float64s:
        return self._read(numbers=[column]).numbers(column)

    def _words(self, column: str) -> Words:
        table = self._read(words=[column])
        return _as_words(table.known[column])[table.codes(column)]

    def _read(self, numbers: Sequence[str] = (), words: Sequence[str] = ()) -> table_file.Table:
        lacks = frozenset((*numbers, *words))
        wanted = table_file.Wanted(None, tuple(numbers), tuple(words), lacks, apart=self.apart)
        refusals = Refusals(self.name) if self.apart else None
        table = table_file.read(self.name, wanted, refusals, self._version)
        if refusals is not None and (count := refusals.left_out()):
            log.info("%d cells or rows of %s cannot be read", count, self.name)
        for said in table.said:
            if not said.endswith(_USUAL):
                self.said = [*(known for known in self.said if not said.startswith(known)), said]
        return table


class ArrayTable(Table):
    """Columns in memory: arrays of equal length."""

    def __init__(self, name: str, columns: Mapping[str, Any], *, apart: bool = False) -> None:
        super().__init__(apart=apart)
        self.name = name
        self._held = {
            str(key): _column(name, key, value, apart=apart) for key, value in columns.items()
        }
        self.columns = list(self._held)
        lengths = {key: value.shape for key, value in self._held.items()}
        if not lengths:
            raise DataInvalid(f"{name} has no columns")
        if len({shape[:1] for shape in lengths.values()}) > 1 or any(
            len(shape) != 1 for shape in lengths.values()
        ):
            raise DataInvalid(f"{name}: its columns are not lists of one length: {lengths}")
        if not len(self):
            raise DataInvalid(f"{name} has no rows")

    def __len__(self) -> int:
        return len(self._held[self.columns[0]])

    def _numbers(self, column: str) -> Float64s:
        held = self._held[column]
        if held.dtype.kind not in "biuf":
            held = np.array([self._number(column, row, cell) for row, cell in enumerate(held)])
        numbers = held.astype(np.float64)
        if self.apart:
            return np.where(np.isinf(numbers), np.nan, numbers)
        if len(wrong := np.flatnonzero(np.isinf(numbers))):
            self._refuse(column, int(wrong[0]), float(numbers[wrong[0]]))
        return numbers

    def _number(self, column: str, row: int, cell: object) -> float:
        text = self._text(column, row, cell)
        if text.lower() in _NO_NUMBER:
            return float("nan")
        try:
            exact = isinstance(cell, bool | np.bool_ | np.floating)
            return float(cell) if exact else float(text)  # type: ignore[arg-type]
        except ValueError:
            if self.apart:
                return float("nan")
            self._refuse(column, row, text)
            raise

    def _text(self, column: str, row: int, cell: object) -> str:
        try:
            return _text_of(cell)
        except Exception:  # Python writes no integer of more than 4,300 digits
            if self.apart:
                return ""
            raise DataInvalid(
                f"{self.name}, row {row + 1}: {plain(column)} holds a value of type "
                f"{type(cell).__name__} that cannot be written as text"
            ) from None

    def _refuse(self, column: str, row: int, cell: object) -> None:
        raise DataInvalid(
            f"{self.name}, row {row + 1}: {plain(column)} = {shown(cell)} is not a finite number"
        )

    def _words(self, column: str) -> Words:
        held = self._held[column]
        if held.dtype.kind == "U":
            return np.char.strip(held)
        cells = enumerate(held.tolist())
        return _as_words([self._text(column, row, cell) for row, cell in cells])


def _column(name: str, key: object, value: Any, *, apart: bool) -> Array:
    if isinstance(value, np.ma.MaskedArray):  # NumPy would read the hidden cells
        value = np.where(np.ma.getmaskarray(value), np.array(None), value.data)
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not apart and any(isinstance(cell, list | tuple | np.ndarray) for cell in value):
            raise DataInvalid(f"{name}: {shown(str(key))} is not a list of numbers or texts")
        value = _of_list(value)
    return _texts(without_na(np.asarray(value), None))


def _of_list(cells: Sequence[Any]) -> Array:
    """Return the cells of a list as an array, without converting a cell to another cell's type.

    NumPy would choose one type for all cells. In the list [2, True], it would turn True into 1.
    """
    kinds = set(map(type, cells))
    if len(kinds) == 1 and (kind := _ALIKE.get(*kinds)) is not None:
        column = np.asarray(cells)
        if column.dtype.kind == kind:
            return column
    column = np.empty(len(cells), object)
    for row, cell in enumerate(cells):
        column[row] = cell
    return column


def _as_words(texts: Sequence[str]) -> Words:
    """Return `texts` as an array of strings or, if a text is long, of Python objects.

    In NumPy's arrays of strings, every entry needs as much memory as the longest string, so a long
    text would make the array too large. They also drop zero characters at the end of a string. For
    equal texts in both kinds of array, this function drops them from Python objects too.
    """
    if not any(len(text) > _LONG for text in texts):
        return np.array(texts, np.str_)
    return np.array([text.rstrip("\0") for text in texts], object)


def _rows_of(value: Any, *, apart: bool) -> Array:
    """Return rows as an array. `value` is an array, or a list of rows.

    A list becomes an array of Python objects, so that NumPy converts no cell to the type of other
    cells. If `apart` is True, all rows of a list get the shape that most of them have. A row of
    another shape becomes a row of missing cells.
    """
    if not isinstance(value, list | tuple):
        return np.asarray(value)
    if not apart:
        return np.asarray(value, object)
    rows = [_row(row) for row in value]
    ((usual, _),) = Counter(map(np.shape, rows)).most_common(1) or [((), 0)]
    found = np.full((len(rows), *usual), None, object)
    for place, row in enumerate(rows):
        if row.shape == usual:
            found[place, ...] = row
    return found


def _row(value: Any) -> Array:
    """Return one row of a list of rows as an array of objects.

    A value that is no list, tuple or array gives an array of shape () with this value. A row that
    NumPy cannot convert gives an array of shape () with None.
    """
    held = np.full(1, None, object)
    with suppress(Exception):  # arrays of different shapes, or the row's own code
        if isinstance(value, list | tuple | np.ndarray):
            return np.asarray(value, object)
        held[0] = value
    return held.reshape(())


def _texts(column: Array) -> Array:
    if column.dtype.kind == "S":
        return np.char.decode(column, "utf-8", "backslashreplace")
    if column.dtype.kind == "O" and column.ndim == 1:
        return _of_list([*column])
    return _dates(column) if column.dtype.kind == "M" else column


def _dates(column: Array) -> Array:
    """Return dates as words: 2024-01-31 12:30:00, or 2024-01-31 if the time is midnight."""
    missing, days = np.isnat(column), column.astype("M8[D]")
    times = np.char.replace(np.datetime_as_string(column.astype("M8[s]")), "T", " ")
    words = np.where(column == days, np.datetime_as_string(days), times)
    found: Array = np.where(missing, "", words)
    return found


def _text_of(cell: object) -> str:
    """Return a cell as a word, such as 2 for 2.0, or 2024-01-31 for a date without a time.

    None, NaN and pandas' missing time become "".
    """
    if cell is None:
        return ""
    if isinstance(cell, complex | np.complexfloating) and not cell.imag:
        cell = cell.real  # one complex cell makes all cells of an array complex
    if isinstance(cell, float | np.floating):
        if np.isnan(cell):
            return ""
        return str(int(cell)) if float(cell).is_integer() else repr(float(cell))
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "backslashreplace").strip()
    if isinstance(cell, np.datetime64):
        return str(_dates(np.array([cell]))[0])
    if isinstance(cell, datetime) and cell.tzinfo is None:
        if str(cell) == "NaT":  # pandas' missing time
            return ""
        midnight = cell.time() == time.min
        return str(cell.date()) if midnight else cell.isoformat(" ", "seconds")
    return str.strip(str(cell))  # a text's own class may have another method


def as_table(data: Any, name: str = "data", *, apart: bool = False) -> Table:
    """Return `data` as a table, which error messages call `name`.

    `data` may be a `Table`, a path, a mapping of names to columns, a pandas DataFrame, a structured
    array, an array of rows, a pair (x, y), or a fedveil `Dataset`. The columns of an array are
    named 0, 1, ... A pair or a Dataset also gives the column y, the targets. A Dataset with owners
    also gives the column client. Only the training examples of a Dataset are used. In a column of
    numbers, a cell that is neither missing nor a finite number is an error. If `apart` is True, it
    counts as missing instead.
    """
    if isinstance(data, Table):
        return data
    if isinstance(data, str | Path):
        return FileTable(str(data), apart=apart)
    if hasattr(data, "train") and hasattr(data, "owners"):
        columns = _of_pair(data.train.x, data.train.y, apart=apart)
        owners = {} if data.owners is None else {"client": data.owners}
        return ArrayTable(data.name, {**columns, **owners}, apart=apart)
    return ArrayTable(name, _columns_of(data, name, apart=apart), apart=apart)


def _columns_of(data: Any, name: str, *, apart: bool) -> Mapping[str, Any]:
    """Return the columns by name of a mapping, a DataFrame, a pair (x, y) or an array.

    `name` is what error messages call the data, and `apart` is as in `as_table`. Raises
    `DataInvalid` if `data` is of another kind.
    """
    if isinstance(data, Mapping):
        return data
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        return {str(c): _of_frame(data[c]) for c in data.columns}
    if isinstance(data, tuple) and len(data) == 2:
        return _of_pair(*data, apart=apart)
    try:
        array = _rows_of(data, apart=apart)
    except ValueError:
        array = np.empty(0)
    if array.dtype.names:
        return {column: array[column] for column in array.dtype.names}
    if array.ndim == 2:
        return {str(i): array[:, i] for i in range(array.shape[1])}
    raise DataInvalid(f"{name} is no table: a file, columns by name or rows of numbers are needed")


def _of_frame(column: Any) -> Array:
    """Return a column of a DataFrame as an array. None stands for pandas' own missing values."""
    values: Array = column.to_numpy()
    if values.dtype == object and hasattr(column, "isna"):
        values = values.copy()
        values[np.asarray(column.isna())] = None
    return values


def _of_pair(x: Any, y: Any, *, apart: bool) -> dict[str, Array]:
    rows = _rows_of(x, apart=apart)
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    return {**{str(i): flat[:, i] for i in range(flat.shape[1])}, "y": y}

"""Reads a block of a CSV file in native code, if Python's csv module would find the same cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Float64s, Int32s
from fedveil.base.kernels import HAVE_NUMBA
from fedveil.tasks.tables import native_cells
from fedveil.tasks.tables.cell_forms import FORMS, is_missing
from fedveil.tasks.tables.csv_format import CsvFormat
from fedveil.tasks.tables.id_rules import MOST_ID_LETTERS
from fedveil.tasks.tables.table_piece import Piece, PlainNumbers

_BYTES = np.arange(256)
#: True for each byte that may be in a plain id: one in which `id_rules` changes at most the case
#: and leading zeros.
_PLAIN = np.array([33 <= code < 127 and chr(code) not in ".+" for code in range(256)])
#: Longer lines are left to Python's reader, which refuses cells of more than 131,072 characters.
_MOST_LINE = 1 << 17
_MARKS = ("point", "comma")
#: A key of `_READERS`, which names a conversion of cells, and the column to convert.
Asked: TypeAlias = tuple[str, str]


class CsvBlock(Piece):
    """Rows of a CSV file. A column's cells are converted when they are first needed.

    `cells`, [columns, rows, 2], has the positions in `block` at which each cell of the columns
    `names` begins and ends. `asked` lists the conversions that were used since the last call of
    `prepare`, so that a later block can prepare the same ones. Each is a pair: a key of
    `_READERS`, such as "dates", and a column. `places` are the rows' line numbers, which the caller
    sets.
    """

    unit = "line"

    def __init__(self, path: str, names: Sequence[str], block: bytes, cells: Int32s) -> None:
        self.path, self._text, self._block = path, block, np.frombuffer(block, np.uint8)
        self._place = {name: at for at, name in enumerate(names)}
        self._cells = cells
        self.asked: list[Asked] = []
        self._known: dict[Asked, Any] = {}
        self.places = range(cells.shape[1])

    def prepare(self, asked: Iterable[Asked]) -> None:
        """Convert columns before their use. `asked` has pairs of a conversion and a column."""
        for what, column in asked:
            self._read(what, column)
        self.asked = []

    def cells(self, column: str) -> list[str]:
        return list(self._decoded(column, slice(None)))

    def coded(self, column: str) -> tuple[Int32s, list[str]]:
        codes, firsts = self._read("distinct", column)
        if firsts is None:
            return super().coded(column)
        return codes, list(self._decoded(column, firsts))

    def numbers(self, column: str, forms: Sequence[str]) -> PlainNumbers | None:
        values, odd, noted = self._read("numbers", column)
        possible = {form for form in forms if form in _MARKS}
        for form, mark, sure in (
            ("point", native_cells.POINT, native_cells.SURE_POINT),
            ("comma", native_cells.COMMA, native_cells.SURE_COMMA),
        ):
            if noted & mark:  # the other form may read it as a thousands separator
                if form not in possible or not (noted & sure or possible == {form}):
                    return None
                possible = {form}
        binary = not noted & native_cells.NOT_BINARY
        for row, text in zip(odd.tolist(), self._decoded(column, odd), strict=True):
            if is_missing(text, ()):
                values[row] = np.nan
                continue
            read = {form: FORMS[form](text) for form in possible}
            possible = {form for form in possible if read[form] is not None}
            numbers = {read[form] for form in possible}
            if len(numbers) != 1:
                return None
            values[row], binary = numbers.pop(), binary and text in ("0", "1")
        kept = [form for form in forms if form in possible or (form == "boolean" and binary)]
        return PlainNumbers(values, kept)

    def dates(self, column: str) -> Float64s | None:
        days: Float64s
        days, odd = self._read("dates", column)
        if 8 * len(odd) > len(days):  # such as dates with times
            return None
        for row, text in zip(odd.tolist(), self._decoded(column, odd), strict=True):
            read = np.nan if is_missing(text, ()) else FORMS["iso"](text)
            if read is None:
                return None
            days[row] = read
        return days

    def plain_ids(self, column: str) -> npt.NDArray[np.str_] | None:
        ids: npt.NDArray[np.str_] | None = self._read("ids", column)
        return ids

    def _read(self, what: str, column: str) -> Any:
        """Return the cells of `column`, converted by `_READERS[what]`. Results are cached."""
        self.asked.append((what, column))
        if (what, column) not in self._known:
            cells = self._cells[self._place[column]]
            self._known[what, column] = _READERS[what](self._block, cells)
        return self._known[what, column]

    def _decoded(self, column: str, rows: Any) -> Iterator[str]:
        for start, end in self._cells[self._place[column]][rows].tolist():
            yield self._text[start:end].decode().strip()


def _distinct(block: Array, cells: Int32s) -> tuple[Int32s, Int32s | None]:
    count = len(cells)
    codes, firsts = np.empty(count, np.int32), np.empty(count, np.int32)
    table = np.zeros(1 << (2 * count).bit_length(), np.int32)
    found = native_cells.distinct(block, cells, table, codes, firsts)
    return codes, None if found < 0 else firsts[:found]


def _numbers(block: Array, cells: Int32s) -> tuple[Float64s, Int32s, int]:
    values, odd = np.empty(len(cells)), np.empty(len(cells), np.int32)
    many, noted = native_cells.numbers(block, cells, values, odd)
    return values, odd[:many], noted


def _dates(block: Array, cells: Int32s) -> tuple[Float64s, Int32s]:
    days, odd = np.empty(len(cells)), np.empty(len(cells), np.int32)
    return days, odd[: native_cells.dates(block, cells, days, odd)]


def _ids(block: Array, cells: Int32s) -> npt.NDArray[np.str_] | None:
    longest = int((cells[:, 1] - cells[:, 0]).max())
    if not 0 < longest <= MOST_ID_LETTERS:
        return None
    texts = np.empty((len(cells), longest), np.uint32)
    plain = native_cells.letters(block, cells, _PLAIN, texts)
    return texts.view(f"U{longest}")[:, 0] if plain else None


_READERS: Final = {"distinct": _distinct, "numbers": _numbers, "dates": _dates, "ids": _ids}


def read(
    found: CsvFormat, columns: Sequence[str], names: Sequence[str], text: str,
    asked: Iterable[Asked] = (),
) -> CsvBlock | None:  # fmt: skip
    """Locate the cells of the columns `names` in `text`, a block of a CSV file.

    `found` is the file's format, and `columns` its header. Also performs the conversions `asked`,
    which are pairs (key of `_READERS`, column). Returns None if numba is not installed, or if
    Python's csv module might find different cells.
    """
    if not HAVE_NUMBA:
        return None
    text_bytes = text.encode() + bytes(native_cells.PADDING)
    block, separator = np.frombuffer(text_bytes, np.uint8), ord(found.separator)
    marks = np.empty(len(block), np.int32)
    many = native_cells.find_marks(block, np.isin(_BYTES, [*b'"\r\n', separator]), marks)
    marks[many] = len(block) - native_cells.PADDING
    place = {name: at for at, name in enumerate(names)}
    kept = np.array([place.get(name, -1) for name in columns])
    cells = np.empty((len(names), many // len(columns) + 1, 2), np.int32)
    rows = native_cells.locate(block, separator, marks[: many + 1], kept, cells, _MOST_LINE)
    if rows < 0:
        return None
    made = CsvBlock(found.path, names, text_bytes, cells[:, :rows])
    made.prepare(asked)
    return made

"""Reads a block of a CSV file in native code, if Python's csv module would find the same cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Int32s
from fedveil.base.kernels import HAVE_NUMBA
from fedveil.tasks.tables import native_cells
from fedveil.tasks.tables.cell_forms import FORMS, is_missing
from fedveil.tasks.tables.csv_format import CsvFormat
from fedveil.tasks.tables.table_piece import Piece, PlainNumbers

#: The bytes of ids that no rule of `id_rules` but letters' case and leading zeros can change.
_PLAIN = np.array([33 <= code < 127 and chr(code) not in ".+" for code in range(256)])
#: Python's reader refuses cells of more than 131,072 characters.
_MOST_LINE = 1 << 17
_MARKS = ("point", "comma")


class CsvBlock(Piece):
    """Rows of a CSV file, whose cells are located but not yet read.

    `starts` and `ends` have the first byte of each cell and the one after it, for the columns
    `names`, and `line` is the line number of the first row.
    """

    unit = "line"

    def __init__(
        self, path: str, names: Sequence[str], block: bytes, starts: Int32s, ends: Int32s, line: int
    ) -> None:
        self.path, self._text, self._block = path, block, np.frombuffer(block, np.uint8)
        self._place = {name: at for at, name in enumerate(names)}
        self._starts, self._ends = starts, ends
        self.places = range(line, line + starts.shape[1])

    @cached_property
    def _memory(self) -> Array:
        """Return memory for `distinct`, which all columns use in turn."""
        return np.empty(1 << (2 * len(self.places)).bit_length(), np.int32)

    def cells(self, column: str, rows: Array | None = None) -> list[str]:
        starts, ends = self._of(column)
        if rows is not None:
            starts, ends = starts[rows], ends[rows]
        where = zip(starts.tolist(), ends.tolist(), strict=True)
        return [self._text[start:end].decode().strip() for start, end in where]

    def coded(self, column: str) -> tuple[Int32s, list[str]]:
        count = len(self.places)
        codes, firsts = np.empty(count, np.int32), np.empty(count, np.int32)
        self._memory.fill(0)
        found = native_cells.distinct(
            self._block, *self._of(column), self._memory, codes, firsts
        )
        return super().coded(column) if found < 0 else (codes, self.cells(column, firsts[:found]))

    def numbers(self, column: str, forms: Sequence[str]) -> PlainNumbers | None:
        values, odd = np.empty(len(self.places)), np.empty(len(self.places), np.int32)
        many, noted = native_cells.numbers(self._block, *self._of(column), values, odd)
        possible = {form for form in forms if form in _MARKS}
        for form, mark, sure in (
            ("point", native_cells.POINT, native_cells.SURE_POINT),
            ("comma", native_cells.COMMA, native_cells.SURE_COMMA),
        ):
            if noted & mark:  # the other form may read the mark as one of thousands
                if form not in possible or not (noted & sure or possible == {form}):
                    return None
                possible = {form}
        binary = not noted & native_cells.NOT_BINARY
        if many:
            texts = self.cells(column, odd[:many])
            for row, text in zip(odd[:many].tolist(), texts, strict=True):
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

    def plain_ids(self, column: str, most: int) -> npt.NDArray[np.str_] | None:
        starts, ends = self._of(column)
        lengths = ends - starts
        longest = int(lengths.max())
        if not lengths.all() or longest > most:
            return None
        within = np.arange(longest, dtype=np.int32)
        letters = self._block.take(starts[:, None] + within, mode="clip")
        outside = within >= lengths[:, None]
        if not (_PLAIN[letters] | outside).all():
            return None
        letters[outside] = 0
        texts: npt.NDArray[np.str_] = letters.astype(np.uint32).view(f"U{longest}")[:, 0]
        return texts

    def _of(self, column: str) -> tuple[Int32s, Int32s]:
        place = self._place[column]
        return self._starts[place], self._ends[place]


def read(
    found: CsvFormat, columns: Sequence[str], names: Sequence[str], text: str, line: int
) -> CsvBlock | None:
    """Locate the cells of a block of text whose first line is number `line` of the file.

    `found` is the file's format, `columns` its header, and `names` the columns to read. Returns
    None if numba is not installed, or if Python's reader might find different cells: each line must
    be a row, and quotes may only surround whole cells.
    """
    if not HAVE_NUMBA:
        return None
    block, place = text.encode(), {name: at for at, name in enumerate(names)}
    kept = np.array([place.get(name, -1) for name in columns])
    most_rows = block.count(b"\n") + 1
    starts, ends = (np.empty((len(names), most_rows), np.int32) for _ in range(2))
    bytes_, separator = np.frombuffer(block, np.uint8), ord(found.separator)
    rows = native_cells.locate(bytes_, separator, kept, starts, ends, _MOST_LINE)
    if rows < 0:
        return None
    return CsvBlock(found.path, names, block, starts[:, :rows], ends[:, :rows], line)

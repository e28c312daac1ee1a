"""Reads a block of a CSV file with pyarrow, if Python's csv module would find the same cells."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Float64s, Int32s
from fedveil.tasks.tables.cell_forms import FORMS
from fedveil.tasks.tables.csv_format import CsvFormat
from fedveil.tasks.tables.table_piece import Piece, PlainNumbers, Plan

_QUOTE, _END = 34, 10
#: The bytes of ids that no rule of `id_rules` but letters' case and leading zeros can change.
_PLAIN = np.array([33 <= code < 127 and chr(code) not in ".+" for code in range(256)])
#: The markers of missing numbers (`cell_forms`) in their usual case. Others are read as texts.
_NULLS = ["", "NA", "na", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None"]
#: Python's reader refuses cells of more than two windows. No line may contain a whole window.
_WINDOW = 1 << 16
#: The cells that may show which of two decimal separators a column has.
_SAMPLED = 100
_MARKS = {"point": ".", "comma": ","}
_BEFORE_YEAR_1 = -719163


class ArrowBlock(Piece):
    """A block of rows of a CSV file, parsed by pyarrow.

    The columns that the plan lists as numbers are parsed as numbers, all others as texts.
    """

    unit = "line"

    def __init__(self, parse: _Parse, plan: Plan, line: int) -> None:
        self.path, self._parse, self._plan = parse.format.path, parse, plan
        self._table = parse.table(plan)
        self.places = range(line, line + self._table.num_rows)

    @cached_property
    def _texts(self) -> Any:
        return self._parse.as_texts(self._plan)

    def cells(self, column: str) -> list[str]:
        import pyarrow.compute as pc

        found = self._text(column)
        texts: list[str] = pc.utf8_trim_whitespace(found.cast("string")).to_pylist()
        return texts

    def coded(self, column: str) -> tuple[Int32s, list[str]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = self._text(column)
        if not pa.types.is_dictionary(found.type):
            found = found.dictionary_encode()
        codes: Int32s = _values(found.indices, np.int32)
        return codes, pc.utf8_trim_whitespace(found.dictionary).to_pylist()

    def numbers(self, column: str, forms: Sequence[str]) -> PlainNumbers | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = _whole(self._table.column(column))
        if pa.types.is_dictionary(found.type):
            marks = {form: _MARKS[form] for form in forms if form in _MARKS}
            for form, mark in marks.items():
                words = found.dictionary
                if mark == ",":  # a point may separate thousands
                    if pc.any(pc.match_substring(words, ".")).as_py():
                        continue
                    words = pc.replace_substring(words, ",", ".")
                if (values := _decoded(found.indices, words, "float64")) is not None:
                    kept = _reading_alike(found.dictionary, form, mark, forms)
                    return None if kept is None else PlainNumbers(values, kept)
            return None
        values = _floats(found.cast("float64"))
        return None if values is None else PlainNumbers(values, [f for f in forms if f in _MARKS])

    def dates(self, column: str) -> Float64s | None:
        found = self._text(column)
        days = _decoded(found.indices, found.dictionary, "date32")
        return None if days is None or (days < _BEFORE_YEAR_1 + 1).any() else days

    def plain_ids(self, column: str) -> tuple[Array, Array] | None:
        found = self._text(column)
        ends, codes = (np.frombuffer(part, kind) for part, kind in zip(
            found.buffers()[1:], (np.int32, np.uint8), strict=True))  # fmt: skip
        ends = ends[found.offset : found.offset + len(found) + 1]
        codes = codes[ends[0] : ends[-1]]
        lengths = np.diff(ends)
        return (codes, lengths) if lengths.all() and _PLAIN[codes].all() else None

    def _text(self, column: str) -> Any:
        import pyarrow as pa

        found = _whole(self._table.column(column))
        is_number = pa.types.is_floating(found.type) or pa.types.is_integer(found.type)
        return _whole(self._texts.column(column)) if is_number else found


class _Parse:
    def __init__(self, found: CsvFormat, columns: Sequence[str], block: bytes) -> None:
        self.format, self._columns, self._block = found, columns, block

    def table(self, plan: Plan) -> Any:
        from pyarrow import ArrowInvalid

        try:
            return self._read(plan, plan.numbers, plan.wholes)
        except ArrowInvalid:  # some cell is not a plain number
            return self.as_texts(plan)

    def as_texts(self, plan: Plan) -> Any:
        return self._read(plan)

    def _read(self, plan: Plan, numbers: Collection[str] = (), wholes: Collection[str] = ()) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        if any(x in self._block and b"0" + x in self._block for x in (b"x", b"X")):
            wholes = ()  # pyarrow would read hexadecimal numbers
        types = dict.fromkeys(plan.names, pa.dictionary(pa.int32(), pa.string()))
        types |= dict.fromkeys(numbers, pa.float64()) | dict.fromkeys(wholes, pa.int64())
        if plan.id is not None:
            types[plan.id] = pa.string()
        return csv.read_csv(
            pa.BufferReader(self._block),
            csv.ReadOptions(column_names=self._columns, block_size=len(self._block) + 1),
            csv.ParseOptions(delimiter=self.format.separator),
            csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=_NULLS,
                decimal_point=plan.decimal, strings_can_be_null=False,
            ),
        )  # fmt: skip


def read(
    found: CsvFormat, columns: Sequence[str], plan: Plan, text: str, line: int
) -> ArrowBlock | None:
    """Parse a block of text as rows of a CSV file. Its first line is number `line` of the file.

    `found` is the file's format, `columns` its header, and `plan` the columns to read. Returns None
    if pyarrow is not installed or cannot parse the block, or if Python's reader might find
    different cells: each line must be a row, and quotes may only surround whole cells.
    """
    if find_spec("pyarrow") is None:
        return None
    from pyarrow import ArrowException

    block = text.encode()
    if (lines := _plain_lines(block, found.separator.encode())) is None:
        return None
    try:
        read = ArrowBlock(_Parse(found, columns, block), plan, line)
    except ArrowException:
        return None
    return read if len(read.places) == lines else None


def _plain_lines(block: bytes, separator: bytes) -> int | None:
    """Return the number of lines of a block, or None if CSV readers may disagree on its cells.

    They may disagree if a quote is inside a cell, if a cell has several lines, or if a line is very
    long.
    """
    if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
        return None  # Python's reader would end a line there
    windows = range(0, len(block) - _WINDOW, _WINDOW)
    if any(block.find(b"\n", start, start + _WINDOW) < 0 for start in windows):
        return None
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if _QUOTE not in block:
        return lines
    buffer = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(buffer == _END)
    quotes = np.flatnonzero(buffer == _QUOTE)
    if len(quotes) % 2:
        return None
    opening, closing = quotes[::2], quotes[1::2]
    edge = np.zeros(256, bool)
    edge[[separator[0], _END]] = True
    opens = edge[buffer[opening - 1]] | (opening == 0)
    edge[ord("\r")] = True
    closes = edge[buffer[np.minimum(closing + 1, len(buffer) - 1)]] | (closing == len(buffer) - 1)
    same_line = np.searchsorted(ends, opening) == np.searchsorted(ends, closing)
    return lines if (opens & closes & same_line).all() else None


@cache
def _markers(further: tuple[str, ...] = ()) -> Any:
    """Return the texts that mark a missing cell, with those in `further`, as a pyarrow array.

    The array is built from buffers, because pyarrow's own conversion would import pandas.
    """
    import pyarrow as pa

    texts = (*_NULLS, *further)
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    joined = pa.py_buffer("".join(texts).encode())
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), joined)


def _decoded(indices: Any, words: Any, kind: str) -> Float64s | None:
    """Return `words[indices]` as numbers of pyarrow's type `kind`. A missing cell is NaN.

    `words` are a column's distinct texts. Returns None if one of them is not such a number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.if_else(pc.is_in(words, value_set=_markers()), pa.NULL, words)
    try:
        numbers = words.cast(kind)
    except pa.ArrowInvalid:
        return None
    numbers = numbers.cast("int32").cast("float64") if kind == "date32" else numbers
    return _floats(pa.DictionaryArray.from_arrays(indices, numbers).dictionary_decode())


def _floats(array: Any) -> Float64s | None:
    missing, values = array.null_count, _values(array, np.float64)
    if missing:
        values = np.where(_values(array.is_null().cast("uint8"), np.bool_), np.nan, values)
    # pyarrow reads a text such as nan(7) as a number that is not missing.
    return values if np.isnan(values).sum() == missing else None


def _reading_alike(words: Any, form: str, mark: str, forms: Sequence[str]) -> list[str] | None:
    """Return those of `forms` that read each of `words` as the same number as `form` does.

    A form is a way to write numbers, such as with decimal commas. `words` are the distinct texts of
    a column, and `mark` is the decimal separator of `form`. Returns None if the other decimal
    separator is possible too and may give other numbers.
    """
    import pyarrow.compute as pc

    kept = [other for other in forms if other in _MARKS]
    if len(kept) > 1:
        marked = words.filter(pc.match_substring(words, mark))[:_SAMPLED].to_pylist()
        (other,) = (other for other in kept if other != form)
        if marked:
            kept = [form]
            if all(FORMS[other](word) is not None for word in marked):
                return None
    if "boolean" in forms and pc.all(pc.is_in(words, value_set=_markers(("0", "1")))).as_py():
        kept.append("boolean")
    return kept


def _values(array: Any, kind: npt.DTypeLike) -> Any:
    """Return the values of a pyarrow array as a NumPy array. A null becomes an arbitrary value.

    Unlike pyarrow's own `to_numpy`, this does not import pandas.
    """
    if not len(array):
        return np.empty(0, kind)
    offset = array.offset * np.dtype(kind).itemsize
    return np.frombuffer(array.buffers()[1], kind, len(array), offset)


def _whole(column: Any) -> Any:
    """Join the chunks of a pyarrow column into one array, which has at most one dictionary."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

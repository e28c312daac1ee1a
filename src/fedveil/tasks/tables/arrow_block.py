"""Reads a block of a CSV file with pyarrow, if it is sure to find the cells that csv would."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float64s, Int32s
from fedveil.tasks.tables.csv_format import CsvFormat
from fedveil.tasks.tables.table_piece import Piece, Plan

_QUOTE, _END = 34, 10
#: The markers of missing numbers (`cell_forms`) in their usual case. Others are read as texts.
_NULLS = ["", "NA", "na", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None"]
#: Python's reader refuses longer cells.
_MOST_LINE = 1 << 17


class ArrowBlock(Piece):
    """Rows of a CSV file, parsed once. The number columns of the plan are numbers, others texts."""

    unit = "line"

    def __init__(self, parse: _Parse, plan: Plan, line: int) -> None:
        self.path, self._parse, self._plan = parse.format.path, parse, plan
        self._alone = parse.format.separator == ","
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

    def numbers(self, column: str, decimal: str) -> Float64s | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = _whole(self._table.column(column))
        if pa.types.is_dictionary(found.type):
            words = found.dictionary
            # If the separator is not a comma, 1.234 may also mean 1234.
            unclear = decimal == "," or not self._alone
            if unclear and pc.any(pc.match_substring(words, ".")).as_py():
                return None
            if decimal == ",":
                words = pc.replace_substring(words, ",", ".")
            words = pc.if_else(pc.is_in(words, value_set=_markers()), pa.NULL, words)
            try:
                found = pa.DictionaryArray.from_arrays(found.indices, words.cast("float64"))
            except pa.ArrowInvalid:
                return None
            found = found.dictionary_decode()
        missing, values = found.null_count, _values(found, np.float64)
        if missing:
            values = np.where(_values(found.is_null().cast("uint8"), np.bool_), np.nan, values)
        # pyarrow reads a text such as nan(7) as a number that is not missing.
        return values if np.isnan(values).sum() == missing else None

    def _text(self, column: str) -> Any:
        import pyarrow as pa

        found = _whole(self._table.column(column))
        return _whole(self._texts.column(column)) if pa.types.is_floating(found.type) else found


class _Parse:
    def __init__(self, found: CsvFormat, columns: Sequence[str], block: bytes) -> None:
        self.format, self._columns, self._block = found, columns, block

    def table(self, plan: Plan) -> Any:
        from pyarrow import ArrowInvalid

        try:
            return self._read(plan, plan.numbers)
        except ArrowInvalid:  # some cell is not a plain number
            return self.as_texts(plan) if plan.numbers else self._read(plan, ())

    def as_texts(self, plan: Plan) -> Any:
        return self._read(plan, ())

    def _read(self, plan: Plan, numbers: set[str] | tuple[()]) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        text, types = pa.dictionary(pa.int32(), pa.string()), dict[str, Any]()
        for name in plan.names:
            kind = pa.string() if name == plan.id else text
            types[name] = pa.float64() if name in numbers else kind
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
    """Parse a block of text whose first line is number `line`. Returns its rows.

    Returns None unless each line is a row, and quotes only surround whole cells. Otherwise Python's
    reader might find different cells.
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
    """Return a block's number of lines, or None if CSV readers may disagree on its cells."""
    buffer = np.frombuffer(block, np.uint8)
    if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
        return None  # Python's reader would end a line there
    ends = np.flatnonzero(buffer == _END)
    if not len(ends) or ends[-1] != len(buffer) - 1:
        ends = np.append(ends, len(buffer))
    if np.diff(ends, prepend=-1).max() > _MOST_LINE:
        return None
    if _QUOTE not in block:
        return len(ends)
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
    return len(ends) if (opens & closes & same_line).all() else None


@cache
def _markers() -> Any:
    """Return the markers as an array of pyarrow, whose own conversion would import pandas."""
    import pyarrow as pa

    ends = np.cumsum([0, *map(len, _NULLS)], dtype=np.int32)
    texts = "".join(_NULLS).encode()
    return pa.StringArray.from_buffers(len(_NULLS), pa.py_buffer(ends), pa.py_buffer(texts))


def _values(array: Any, kind: npt.DTypeLike) -> Any:
    """Return an array's values, any value for a null. Unlike `to_numpy`, it imports no pandas."""
    if not len(array):
        return np.empty(0, kind)
    offset = array.offset * np.dtype(kind).itemsize
    return np.frombuffer(array.buffers()[1], kind, len(array), offset)


def _whole(column: Any) -> Any:
    """Return a chunked column as one array, with one dictionary."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

"""Reads a table from CSV with a header. Empty lines are skipped."""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Any, Final, TypeAlias

from fedveil.errors import DataInvalid
from fedveil.settings.allowed import shown
from fedveil.tasks.tables import csv_block
from fedveil.tasks.tables.csv_format import CsvFormat
from fedveil.tasks.tables.disk_columns import THREADS
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_piece import Piece

Record: TypeAlias = tuple[int, list[str]]

#: A table of all transcripts of a genome has some 60,000 columns.
MOST_COLUMNS: Final = 100_000
#: The limits of rows and cells in memory at a time: 2 million cells of some 60 bytes each.
_AT_ONCE, _CELLS_AT_ONCE = 8192, 1 << 21
#: A part of the message with which Python's reader refuses a cell.
_TOO_LONG = "field larger than field limit"
#: The number of blocks that are read before the caller asks for them.
_AHEAD = 3


class _Records(Piece):
    unit = "line"

    def __init__(self, path: str, columns: Sequence[str], records: Sequence[Record]) -> None:
        self.path, self._records = path, records
        self._place = {name: place for place, name in enumerate(columns)}
        self.places = [line for line, _ in records]

    def cells(self, column: str) -> list[str]:
        place = self._place[column]
        return [cells[place].strip() for _, cells in self._records]


def header(found: CsvFormat) -> list[str]:
    with found.blocks() as blocks:
        return _header(found.path, _reader(found, _Lines(found, blocks)))


def pieces(found: CsvFormat, names: Sequence[str], refusals: Refusals) -> Iterator[Piece]:
    """Yield the rows of a file of the format `found` in pieces, with the columns `names`.

    Rows with more or fewer cells than the header, or with a cell that is too long for Python's
    reader, are omitted and reported to `refusals`.
    """
    with found.blocks() as blocks:
        first = next(blocks, "")
        reader = _reader(found, _Lines(found, iter([first])))
        columns = _header(found.path, reader)
        line, begun = reader.line_num, io.StringIO(first, newline="")
        for _ in range(line):
            begun.readline()
        rest = chain(filter(None, [begun.read()]), blocks)

        ahead: deque[tuple[str, Future[csv_block.CsvBlock | None]]] = deque()
        asked: list[csv_block.Asked] = []
        with ThreadPoolExecutor(THREADS) as threads:
            while True:
                while len(ahead) < (_AHEAD if asked else 1) and (block := next(rest, "")):
                    reading = threads.submit(csv_block.read, found, columns, names, block, asked)
                    ahead.append((block, reading))
                fast = ahead[0][1].result() if ahead else None
                if fast is None:
                    break
                ahead.popleft()
                fast.places = range(line + 1, line + 1 + len(fast.places))
                line = fast.places[-1]
                yield fast
                asked = fast.asked
        rest = chain((block for block, _ in ahead), rest)
        read = _lone_records if found.apart else _records
        records = read(found, rest, line, columns, refusals)
        yield from _slowly(found.path, columns, records)


def _slowly(path: str, columns: Sequence[str], records: Iterator[Record]) -> Iterator[Piece]:
    rows = max(1, min(_AT_ONCE, _CELLS_AT_ONCE // len(columns)))
    while chunk := list(islice(records, rows)):
        yield _Records(path, columns, chunk)


class _Lines(Iterator[str]):
    """Iterates over the lines of a CSV file, for Python's csv reader.

    A record can span several lines. `skip` passes over the rest of a record that the reader could
    not finish. For this, call `begin` before each record.
    """

    def __init__(self, found: CsvFormat, blocks: Iterator[str]) -> None:
        self._lines = (line for block in blocks for line in io.StringIO(block, newline=""))
        self._separator = found.separator
        self._marks = re.compile(f'"|{re.escape(found.separator)}')
        self._record = list[str]()

    def __next__(self) -> str:
        self._record.append(line := next(self._lines))
        return line

    def begin(self) -> None:
        """Treat the next line as the first line of a record."""
        self._record.clear()

    def skip(self) -> int:
        """Skip the remaining lines of a record with an overlong cell. Returns their number.

        Raises csv.Error if the quotes in the record are invalid. In particular, the rows after an
        unclosed quote must not be skipped as if they were a part of the quoted cell.
        """
        quoted, skipped = False, 0
        for line in self._record:
            quoted = self._quoted_after(line, quoted)
        while quoted and (line := next(self._lines, "")):
            quoted = self._quoted_after(line, quoted)
            skipped += 1
        if quoted:
            raise csv.Error("unexpected end of data")
        return skipped

    def _quoted_after(self, line: str, quoted: bool) -> bool:
        """Return True if a quoted cell continues after `line`.

        `quoted` is True if `line` begins inside a quoted cell.
        """
        opens_at = -1 if quoted else 0  # where a quote begins or continues a quoted cell
        for mark in self._marks.finditer(line):
            if mark[0] != '"':
                opens_at = opens_at if quoted else mark.end()
            elif quoted:
                quoted, opens_at = False, mark.end()  # a second quote makes it a quote in the cell
                if line[opens_at : opens_at + 1] not in ("", "\r", "\n", '"', self._separator):
                    raise csv.Error(f"'{self._separator}' expected after '\"'")
            else:
                quoted = mark.start() == opens_at
        return quoted


def _reader(found: CsvFormat, lines: Iterator[str]) -> Any:
    return csv.reader(lines, strict=True, delimiter=found.separator)


def _invalid(path: str, line: int, error: csv.Error) -> DataInvalid:
    return DataInvalid(f"{path}, line {line} is not valid CSV: {error}")


def _header(path: str, reader: Any) -> list[str]:
    try:
        columns = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise _invalid(path, reader.line_num, error) from None
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
            hint = "" if number else ". If it is the index of pandas, write index=False in to_csv"
            raise DataInvalid(f"{path}: column {number + 1} of the header has no name{hint}")
        if name in known:
            raise DataInvalid(f"{path}: the header names {shown(name)} twice")
        known.add(name)
    return columns


def _records(
    found: CsvFormat, blocks: Iterator[str], before: int, columns: list[str], refusals: Refusals
) -> Iterator[Record]:
    """Yield (first line number, cells) of each record in `blocks`, the text of a CSV file.

    The file has the format `found`, and the blocks begin after `before` lines of it. A record with
    more or fewer cells than `columns`, or with a cell that is too long, is omitted and reported to
    `refusals`.
    """
    lines, width = _Lines(found, blocks), len(columns)
    reader = _reader(found, lines)
    while True:
        lines.begin()
        line = before + reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if _TOO_LONG not in str(error):
                raise _invalid(found.path, before + reader.line_num, error) from None
            try:
                before += lines.skip()  # otherwise lines inside the cell would be read as records
            except csv.Error as worse:
                raise _invalid(found.path, line, worse) from None
            said = f" has a cell of more than {csv.field_size_limit():,} characters"
            refusals.rows("", "long", said, [line], 1)
            continue
        if cells is None:
            return
        if len(cells) == width:
            yield line, cells
        elif cells:
            _refuse_width(refusals, line, len(cells), width)


def _lone_records(
    found: CsvFormat, blocks: Iterator[str], before: int, columns: list[str], refusals: Refusals
) -> Iterator[Record]:
    """Yield the same records as `_records`, but read each line by itself.

    A line that is no record is omitted and reported to `refusals`. So a quote that is not closed,
    or a cell of several lines, affects no other line.
    """
    lines, width = _Lines(found, blocks), len(columns)
    for line, text in enumerate(lines, before + 1):
        lines.begin()
        try:
            cells: list[str] = next(_reader(found, iter([text])), [])
        except csv.Error as error:
            refusals.rows("", "line", f" is not valid CSV: {error}", [line], 1)
            continue
        if cells and len(cells) != width:
            _refuse_width(refusals, line, len(cells), width)
        elif cells:
            yield line, cells


def _refuse_width(refusals: Refusals, line: int, cells: int, width: int) -> None:
    said = f" has {cells} cells, but the header has {width}"
    refusals.rows("", "width", said, [line], 1)

"""A table as data, with its output formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table as RichTable
from rich.text import Text

from fedveil.base.untrusted import escaped

#: A terminal does not wrap a column of single words (such as protections) of at most this length.
_WHOLE = 16
#: The spaces between two columns in a terminal.
_GAP = 2


class Link(str):
    """A table cell that links to the relative address `target`."""

    __slots__ = ("target",)

    target: str

    def __new__(cls, text: str, target: str) -> Link:
        link = super().__new__(cls, text)
        link.target = target
        return link


@dataclass(frozen=True)
class Table:
    """Rows of formatted cells. `caption` says what the table shows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def markdown(self) -> str:
        """Format the table as Markdown. A table without rows becomes its caption."""
        if not self.rows:
            return f"{self.caption}\n"
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
        table = "".join(f"| {' | '.join(line)} |\n" for line in cells)
        return f"{self.caption}\n\n{table}" if self.caption else table

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()

    def records(self) -> list[dict[str, str]]:
        """Return each row as a dictionary with the column names as keys."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def within(self, width: int, optional: Sequence[str]) -> Table:
        """Return the table without columns for which `width` characters leave no room.

        If the longest words of all columns do not fit, columns named in `optional` are left out,
        one after the other.
        """
        table = self
        for name in optional:
            if table._free(width) >= 0:
                break
            table = table._without(name)
        return table

    def _without(self, name: str) -> Table:
        kept = [number for number, column in enumerate(self.columns) if column != name]
        columns, *rows = ([line[number] for number in kept] for line in (self.columns, *self.rows))
        return replace(self, columns=columns, rows=rows)

    @property
    def _cells(self) -> list[list[str]]:
        """The cells of each column as a terminal shows them, its name first."""
        lines = (map(escaped, line) for line in (self.columns, *self.rows))
        return [[*column] for column in zip(*lines, strict=True)]

    @property
    def _least(self) -> list[int]:
        """The length of each column's longest word."""
        words = (
            [cell_len(word) for cell in cells for word in cell.split()] for cells in self._cells
        )
        return [max(lengths, default=0) for lengths in words]

    def _free(self, width: int) -> int:
        """Return how many of `width` characters are left if no column is wider than its words.

        The result is negative if the longest words do not fit.
        """
        return width - _GAP * (len(self.columns) - 1) - sum(self._least)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable]:
        yield self.terminal(options.max_width)

    def terminal(self, width: int) -> RichTable:
        """Return the table as rich prints it in `width` characters.

        Every word stays whole if the longest words of all columns fit.
        """
        table = RichTable(box=None, pad_edge=False)
        widths = self._widths(width)
        for cells, characters in zip(self._cells, widths, strict=True):
            whole = all(" " not in cell and len(cell) <= _WHOLE for cell in cells)
            table.add_column(Text(cells[0]), overflow="fold", no_wrap=whole, width=characters)
        for row in self.rows:
            table.add_row(*(Text(escaped(cell)) for cell in row))
        return table

    def _widths(self, width: int) -> list[int] | list[None]:
        """Return each column's width, if all words can stay whole in `width` characters."""
        free = self._free(width)
        if free < 0:
            return [None] * len(self.columns)
        widths = self._least
        needed = (max(map(cell_len, cells)) - widths[i] for i, cells in enumerate(self._cells))
        columns = sorted((more, number) for number, more in enumerate(needed))
        for later, (more, number) in zip(range(len(columns), 0, -1), columns, strict=True):
            given = min(more, free // later)  # an equal part of what is left, or all it needs
            widths[number], free = widths[number] + given, free - given
        return widths

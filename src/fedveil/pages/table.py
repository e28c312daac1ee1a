"""A table as data, with its output formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable
from rich.text import Text

from fedveil.base.untrusted import escaped

#: A terminal does not wrap a column of single words (such as protections) of at most this length.
_WHOLE = 16


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

    def terminal(self) -> RichTable:
        table = RichTable(box=None, pad_edge=False)
        for number, column in enumerate(self.columns):
            cells = [column, *(row[number] for row in self.rows)]
            whole = all(" " not in cell and len(cell) <= _WHOLE for cell in cells)
            table.add_column(Text(escaped(column)), overflow="fold", no_wrap=whole)
        for row in self.rows:
            table.add_row(*(Text(escaped(cell)) for cell in row))
        return table

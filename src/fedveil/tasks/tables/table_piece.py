"""Some rows of a table's file, read column by column. Every cell is checked when it is read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NoReturn

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import plain, shown

#: All ids of a table take as much memory as the longest one: NumPy's texts have one width, with 4
#: bytes for each letter. A UUID has 36 letters, and a SHA-512 in hexadecimal digits 128.
MOST_ID_LETTERS: Final = 256
#: The texts that mean a missing number, in lower case.
_NO_NUMBER = ("", "na", "nan")


class Piece(ABC):
    """Some rows of a file. `places` are their line numbers, or their row numbers from 1."""

    path: str
    unit: str
    places: Sequence[int]

    @abstractmethod
    def cells(self, column: str) -> list[str]:
        """Return a column's cells as texts without surrounding spaces. A missing cell is ""."""

    def text(self, column: str, row: int) -> str:
        """Return the cell of `column` in `row` in the form that an error message shows."""
        return self.cells(column)[row]

    def words(self, column: str, may_lack: bool) -> list[str]:
        cells = self.cells(column)
        if not may_lack and "" in cells:
            self.refuse(column, cells.index(""), "")
        return cells

    def ids(self, column: str) -> list[str]:
        """Return a column as ids. Raises DataInvalid if an id is empty or too long."""
        found = self.words(column, False)
        for row, cell in enumerate(found):
            problem = ""
            if len(cell) > MOST_ID_LETTERS:
                problem = f"has {len(cell):,} letters; an id has at most {MOST_ID_LETTERS}"
            elif "\0" in cell:  # NumPy drops it at the end of a text: two ids would become equal
                problem = "contains a NUL character, which an id must not"
            if problem:
                where = f"{self.path}, {self.unit} {self.places[row]}"
                raise DataInvalid(f"{where}: {plain(column)} = {shown(cell)} {problem}")
        return found

    def numbers(self, column: str, may_lack: bool) -> Float64s:
        """Return a column as finite numbers. With `may_lack`, missing numbers are NaN."""
        found = self.raw_numbers(column)
        if np.isinf(found).any():
            row = int(np.isinf(found).argmax())
            self.refuse(column, row, self.text(column, row))
        if not may_lack and np.isnan(found).any():
            self.refuse(column, int(np.isnan(found).argmax()), "")
        return found

    def raw_numbers(self, column: str) -> Float64s:
        """Return a column as numbers, including NaN and infinite ones."""
        cells = self.cells(column)
        try:
            return np.array([float(cell) for cell in cells])
        except ValueError:
            return np.array([self._number(column, row, cell) for row, cell in enumerate(cells)])

    def _number(self, column: str, row: int, cell: str) -> float:
        if cell.lower() in _NO_NUMBER:
            return math.nan
        try:
            return float(cell)
        except ValueError:
            self.refuse(column, row, cell)

    def refuse(self, column: str, row: int, cell: str) -> NoReturn:
        where = f"{self.path}, {self.unit} {self.places[row]}: {plain(column)}"
        if cell == "":
            raise DataInvalid(f"{where} is empty")
        raise DataInvalid(f"{where} = {shown(cell)} is not a finite number")

"""Some rows of a table file, whose columns are read one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float64s, Int32s


class PlainNumbers(NamedTuple):
    """The numbers of a column, and the forms (`cell_forms`) that read its cells as these numbers.

    A missing cell is NaN.
    """

    values: Float64s
    forms: Sequence[str]


class Piece(ABC):
    """Some rows of a file. `places` are line numbers (CSV) or row numbers from 1 (Parquet)."""

    path: str
    unit: str
    places: Sequence[int]

    @abstractmethod
    def cells(self, column: str) -> list[str]:
        """Return a column's cells as texts, without spaces around them. A missing cell is ""."""

    def coded(self, column: str) -> tuple[Int32s, list[str]]:
        """Return each row's text as an index into the list of distinct texts, and that list."""
        known: dict[str, int] = {}
        codes = [known.setdefault(cell, len(known)) for cell in self.cells(column)]
        return np.array(codes, np.int32), list(known)

    def numbers(self, column: str, forms: Sequence[str]) -> PlainNumbers | None:
        """Return a column's numbers, and the forms in which its cells state them.

        A form is a way to write a number, such as a decimal or a date (`cell_forms`). The returned
        forms are those of `forms` that read all cells as the returned numbers. Returns None if the
        column must be read as texts.
        """
        return None

    def has_numbers(self, column: str) -> bool:
        """Return True if the file stores the column's cells as numbers, not as texts."""
        return False

    def dates(self, column: str) -> Float64s | None:
        """Return a column of ISO dates as days since 1970. None if it must be read as texts."""
        return None

    def plain_ids(self, column: str) -> npt.NDArray[np.str_] | None:
        """Return the ids, or None if one is not plain.

        A plain id is short, ASCII and not empty, without a space, control character, point or plus.
        """
        return None

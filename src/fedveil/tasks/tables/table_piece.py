"""Some rows of a table file, whose columns are read one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedveil.base.array_types import Float64s, Int32s


@dataclass
class Plan:
    """Which columns of a file to read, and which of them as numbers. Updated during reading.

    `numbers` are the columns with only plain numbers so far, whose decimal separator is `decimal`.
    All other columns are read as texts.
    """

    names: Sequence[str]
    id: str | None = None
    numbers: set[str] = field(default_factory=set)
    decimal: str = "."


class Piece(ABC):
    """Some rows of a file. `places` are their line numbers, or their row numbers from 1."""

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

    def words(self, column: str) -> tuple[Int32s, list[str]]:
        """Return each row's word as an index into the list of distinct words, and that list.

        Raises DataInvalid if the column has other values than words.
        """
        return self.coded(column)

    def numbers(self, column: str, decimal: str) -> Float64s | None:
        """Return a column of plain numbers, NaN if missing. None if it must be read as texts.

        `decimal` is the decimal separator.
        """
        return None

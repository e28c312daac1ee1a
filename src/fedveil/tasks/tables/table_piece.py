"""Some rows of a table's file, read column by column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedveil.base.array_types import Float64s, Int32s


@dataclass
class Plan:
    """The columns to read from a file. `numbers` grows and shrinks while the file is read.

    `numbers` are columns that so far have plain numbers, with the decimal mark `decimal`. All
    others are read as texts.
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
        """Return a column's cells as texts without surrounding spaces. A missing cell is ""."""

    def coded(self, column: str) -> tuple[Int32s, list[str]]:
        """Return a column's texts, as `cells`: the index of each row's text in a list."""
        known: dict[str, int] = {}
        codes = [known.setdefault(cell, len(known)) for cell in self.cells(column)]
        return np.array(codes, np.int32), list(known)

    def words(self, column: str) -> tuple[Int32s, list[str]]:
        """Return a column of words as `coded` does. Raises DataInvalid if it holds other values."""
        return self.coded(column)

    def numbers(self, column: str, decimal: str) -> Float64s | None:
        """Return a column of plain numbers, NaN if missing. None if its texts must be read.

        `decimal` is the decimal mark of written numbers.
        """
        return None

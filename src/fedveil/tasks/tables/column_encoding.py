"""What a party's columns become for its parts, learnt from its own training rows alone.

A number x becomes (x - mean) / deviation for the deep part, and for the wide part the interval
between quantiles that holds it, one-hot. A word becomes its place, one-hot, for both; under a
dense layer that is an embedding. An encoding is kept with the run, so that whatever looks at the
model later speaks of the same numbers, places and classes.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from fedveil.errors import DataInvalid
from fedveil.settings.allowed import plain, shown
from fedveil.settings.settings import Settings
from fedveil.tasks.tables.csv_file import Floats, Table

Hot: TypeAlias = npt.NDArray[np.float32]
_SHOWN = 5


class Scale(Settings):
    """Mean and standard deviation of a column's numbers."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, table: Table, column: str) -> Scale:
        """The scale of a column's numbers that are there; they are not all the same."""
        values = _present(table, column)
        if np.ptp(values) == 0:
            raise DataInvalid(
                f"{table.path}: {plain(column)} is {values[0]:g} in every training row, which "
                f"tells nothing; `without` leaves it out"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(values.mean()), float(values.std())
        if not (np.isfinite(mean) and np.isfinite(deviation) and deviation > 0):
            raise DataInvalid(f"{table.path}: {plain(column)} holds numbers that cannot be scaled")
        return cls(mean=mean, deviation=deviation)

    def applied(self, table: Table, column: str) -> Hot:
        """The column's numbers, the mean where there is none, with mean 0 and deviation 1."""
        values = self.filled(table, column)
        with np.errstate(over="ignore"):
            scaled: Hot = ((values - self.mean) / self.deviation).astype(np.float32)
        if not np.isfinite(scaled).all():
            row = int(np.isinf(scaled).argmax())
            raise DataInvalid(
                f"{table.place(row)}: {plain(column)} = {values[row]:g} is too far from the "
                f"training rows' numbers, {self.mean:g} ± {self.deviation:g}"
            )
        return scaled

    def filled(self, table: Table, column: str) -> Floats:
        """The column's numbers, the mean where there is none."""
        values = table.numbers[column]
        return np.where(np.isnan(values), self.mean, values)

    def undone(self, scaled: npt.NDArray[np.float32]) -> Floats:
        numbers: Floats = scaled.astype(np.float64) * self.deviation + self.mean
        return numbers


class Numbers(Settings):
    """A column of numbers: its scale, and the quantiles between its intervals."""

    scale: Scale
    edges: tuple[float, ...]

    @classmethod
    def of(cls, table: Table, column: str, bins: int) -> Numbers:
        scale = Scale.of(table, column)
        edges = np.quantile(_present(table, column), np.arange(1, bins) / bins)
        return cls(scale=scale, edges=tuple(edges.tolist()))

    @property
    def widths(self) -> tuple[int, int]:
        """How many intervals there are, and one number."""
        return len(self.edges) + 1, 1

    def applied(self, table: Table, column: str) -> tuple[Hot, Hot]:
        """The column for the wide part, and for the deep one."""
        values = self.scale.filled(table, column)
        intervals = np.searchsorted(np.array(self.edges), values, side="right")
        scaled = self.scale.applied(table, column)
        return _one_hot(intervals, self.widths[0]), scaled[:, np.newaxis]


class Words(Settings):
    """A column of words: those with a place of their own; the last place is all others'."""

    words: tuple[str, ...]
    places: int

    @classmethod
    def of(cls, table: Table, column: str, places: int) -> Words:
        """Places for the most frequent words of the training rows, of equals in their order."""
        counts = Counter(word for word in table.words[column] if word)
        if not counts:
            raise DataInvalid(f"{table.path}: {plain(column)} is empty in every training row")
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[: places - 1]
        return cls(words=tuple(frequent), places=places)

    @property
    def widths(self) -> tuple[int, int]:
        """The places, twice."""
        return self.places, self.places

    def applied(self, table: Table, column: str) -> tuple[Hot, Hot]:
        """The column for the wide part, and the same for the deep one."""
        place = {word: number for number, word in enumerate(self.words)}
        last = self.places - 1
        found = np.array([place.get(word, last) for word in table.words[column]], np.int64)
        hot = _one_hot(found, self.places)
        return hot, hot


class Classes(Settings):
    """The labels' classes, as the file names them, by number."""

    classes: tuple[str, ...]

    @classmethod
    def of(cls, table: Table, column: str, count: int) -> Classes:
        """The classes of the training rows: whole numbers in their order, others as texts."""
        found = sorted(set(table.words[column]), key=_as_ordered)
        if len(found) != count:
            few = ", ".join(map(shown, found[:_SHOWN])) + (", ..." if len(found) > _SHOWN else "")
            said = f"{len(found)} classes, {few}" if len(found) > 1 else f"one class only, {few}"
            raise DataInvalid(
                f"{table.path}: {plain(column)} holds {said}, in the training rows, and "
                f"task.tables.classes = {count}"
            )
        return cls(classes=tuple(found))

    def applied(self, table: Table, column: str) -> npt.NDArray[np.int64]:
        number = {name: at for at, name in enumerate(self.classes)}
        cells = table.words[column]
        for row, cell in enumerate(cells):
            if cell not in number:
                raise DataInvalid(
                    f"{table.place(row)}: {plain(column)} = {shown(cell)} is a class of no "
                    f"training row"
                )
        return np.array([number[cell] for cell in cells], np.int64)


class Encoding(Settings):
    """All columns of a party's table, in their order, and the leader's labels."""

    columns: dict[str, Numbers | Words]
    label: Classes | Scale | None = None

    @classmethod
    def read(cls, data: bytes, source: str) -> Encoding:
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            raise DataInvalid(f"{source} is damaged: it is no encoding of a table") from None

    def written(self) -> bytes:
        """As JSON; every number is read back as it is."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    @property
    def widths(self) -> tuple[int, int]:
        """How many numbers a row has in the wide part's column, and in the deep part's."""
        widths = [column.widths for column in self.columns.values()]
        return sum(wide for wide, _ in widths), sum(deep for _, deep in widths)

    def applied(self, table: Table) -> dict[str, Hot]:
        """The columns `wide` and `deep` of a table; none where the party has no features."""
        if not self.columns:
            return {}
        pairs = [column.applied(table, name) for name, column in self.columns.items()]
        wide, deep = (np.concatenate(parts, axis=1) for parts in zip(*pairs, strict=True))
        return {"wide": wide, "deep": deep}


def _present(table: Table, column: str) -> Floats:
    values = table.numbers[column]
    present: Floats = values[~np.isnan(values)]
    if not len(present):
        raise DataInvalid(f"{table.path}: {plain(column)} is empty in every training row")
    return present


def _one_hot(places: npt.NDArray[np.intp], count: int) -> Hot:
    hot = np.zeros((len(places), count), np.float32)
    hot[np.arange(len(places)), places] = 1
    return hot


def _as_ordered(text: str) -> tuple[int, int, str]:
    """Whole numbers before all else, by size."""
    digits = text.removeprefix("-")
    whole = digits.isascii() and digits.isdigit()
    return (0, int(text), text) if whole else (1, 0, text)

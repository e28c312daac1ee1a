"""The encoding of a party's table columns as model inputs, computed from its training rows alone.

For the deep part of a wide-and-deep model, a number x becomes (x - mean) / deviation. For the wide
part, x becomes the index of its interval between quantiles. For both parts, a word becomes an
index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from fedveil.base.array_types import Array, Float32s, Float64s
from fedveil.base.kernels import compiled
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import plain, shown
from fedveil.settings.settings import Settings
from fedveil.settings.stored import Stored
from fedveil.tasks.tables.cell_forms import Kind
from fedveil.tasks.tables.disk_columns import THREADS, mapped, narrowest
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_file import Table
from fedveil.tasks.wide_and_deep import Features

Codes: TypeAlias = npt.NDArray[np.int64]

_SHOWN = 5
#: Longer cells are not whole numbers. Python itself reads at most a few thousand digits.
_DIGITS = 64
#: Up to this many edges, comparing with each is faster than a search.
_FEW_EDGES = 16
#: The rows that are encoded together, so that they stay in the processor's cache.
_TOGETHER = 1 << 13


class Scale(Settings):
    """The mean and standard deviation of a column of numbers."""

    mean: float
    deviation: float = Field(gt=0)

    @classmethod
    def of(cls, table: Table, column: str) -> Scale:
        """Compute a column's scale. Raises DataInvalid if all its numbers are equal."""
        return cls._of(table, column, _present(table, column))

    @classmethod
    def _of(cls, table: Table, column: str, values: Float64s, advice: str = "") -> Scale:
        if values.min() == values.max():
            raise DataInvalid(
                f"{table.path}: {plain(column)} is {values[0]:g} in every training row, "
                f"so nothing can be learnt{advice}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(values.mean()), float(values.std())
        if not (np.isfinite(mean) and np.isfinite(deviation) and deviation > 0):
            raise DataInvalid(f"{table.path}: {plain(column)} has numbers that cannot be scaled")
        return cls(mean=mean, deviation=deviation)

    def applied(self, table: Table, column: str) -> Float32s:
        """Return the column scaled to mean 0 and variance 1. A missing number becomes the mean."""
        scaled = self.scaled(self.filled(table.numbers(column)))
        self.check(table, column, scaled)
        return scaled

    def check(self, table: Table, column: str, scaled: Float32s, first: int = 0) -> None:
        """Raise DataInvalid if a number of `scaled` is infinite.

        `scaled` has the scaled numbers of `column` in `table`, from row `first` on.
        """
        if not np.isfinite(scaled).all():
            row = first + int((~np.isfinite(scaled)).argmax())
            raise DataInvalid(
                f"{table.place(row)}: {plain(column)} = {table.numbers(column)[row]:g} is too far "
                f"from the training rows' numbers, {self.mean:g} ± {self.deviation:g}"
            )

    def scaled(self, values: Float64s) -> Float32s:
        with np.errstate(over="ignore"):
            scaled: Float32s = ((values - self.mean) / self.deviation).astype(np.float32)
        return scaled

    def filled(self, values: Float64s) -> Float64s:
        """Return `values` with the column's mean in place of missing numbers (NaN)."""
        missing = np.isnan(values)
        return np.where(missing, self.mean, values) if missing.any() else values

    def undone(self, scaled: Array) -> Float64s:
        numbers: Float64s = scaled.astype(np.float64) * self.deviation + self.mean
        return numbers


class Numbers(Settings):
    """The encoding of a column of numbers: its kind, its scale, and the bounds of its intervals."""

    kind: Kind = "number"
    scale: Scale
    edges: tuple[float, ...]

    @classmethod
    def of(cls, table: Table, column: str, bins: int) -> Numbers:
        values = _present(table, column)
        advice = " from it; leave it out with `without`"
        scale = Scale._of(table, column, values, advice)
        edges = _quantiles(np.sort(values), np.arange(1, bins) / bins)
        kind = table.kinds.get(column, "number")
        return cls(kind=kind, scale=scale, edges=tuple(edges.tolist()))

    def encode(self, values: Float64s, scaled: Float32s, intervals: Array) -> None:
        """Write the scaled value of each number to `scaled`, and its interval index to `intervals`.

        NaN counts as the mean.
        """
        edges = np.array(self.edges)
        _encode(values, self.scale.mean, self.scale.deviation, edges, scaled, intervals)


def _encode_numpy(
    values: Float64s, mean: float, deviation: float, edges: Float64s, scaled: Float32s,
    intervals: Array,
) -> None:  # fmt: skip
    scale = Scale(mean=mean, deviation=deviation)
    filled = scale.filled(values)
    scaled[:] = scale.scaled(filled)
    intervals[:] = np.searchsorted(edges, filled, side="right")


@compiled(_encode_numpy)
def _encode(
    values: Float64s, mean: float, deviation: float, edges: Float64s, scaled: Float32s,
    intervals: Array,
) -> None:  # fmt: skip
    for row in range(len(values)):
        value = mean if np.isnan(values[row]) else values[row]
        scaled[row] = np.float32((value - mean) / deviation)
        place = 0
        if len(edges) > _FEW_EDGES:
            place = _edges_up_to(value, edges)
        else:
            for edge in edges:
                place += edge <= value
        intervals[row] = place


@compiled()
def _edges_up_to(value: float, edges: Float64s) -> int:
    """Return the number of edges that are at most `value`, by binary search."""
    place, high = 0, len(edges)
    while place < high:
        middle = (place + high) // 2
        if edges[middle] <= value:
            place = middle + 1
        else:
            high = middle
    return place


class Words(Settings):
    """Encodes words: each of `words` has an index, and all other words share the last index.

    `places` is the number of indices.
    """

    words: tuple[str, ...]
    places: int

    @classmethod
    def of(cls, table: Table, column: str, places: int) -> Words:
        """Return an encoding with `places` indices: one for each of the most frequent words.

        The last index is for all other words. Raises DataInvalid if all cells are empty.
        """
        known = table.known[column]
        counts = np.bincount(table.codes(column), minlength=len(known)).tolist()
        found = [
            (-count, word) for count, word in zip(counts, known, strict=True) if count and word
        ]
        if not found:
            raise DataInvalid(f"{table.path}: {plain(column)} is empty in every training row")
        frequent = sorted(found)[: places - 1]
        return cls(words=tuple(word for _, word in frequent), places=places)

    def applied(self, table: Table, column: str) -> Codes:
        """Return this encoding's index for the word in each row of the column."""
        return self.of_known(table, column)[table.codes(column)]

    def of_known(self, table: Table, column: str) -> Codes:
        """Return this encoding's index for each word of `table.known[column]`, in order."""
        place = {word: number for number, word in enumerate(self.words)}
        known = [place.get(word, self.places - 1) for word in table.known[column]]
        return np.array(known, np.int64)


def learn(
    table: Table, names: Collection[str], places: Mapping[str, int], bins: int, refusals: Refusals
) -> dict[str, Numbers | Words]:
    """Compute the encodings of the columns `names` from the training rows in `table`.

    `places` maps each word column to its number of word indices. `bins` is the number of intervals
    of every number column. Columns that cannot be encoded are added to `refusals`.
    """

    def of(name: str) -> Numbers | Words:
        return (
            Words.of(table, name, places[name]) if name in places else Numbers.of(table, name, bins)
        )

    with ThreadPoolExecutor(THREADS) as threads:
        learnt = {name: threads.submit(of, name) for name in names}
    columns = {}
    for name, column in learnt.items():
        with refusals.collecting(name):
            columns[name] = column.result()
    return columns


class Classes(Settings):
    """The names of the classes of a label, as written in the file. Class i has the i-th name."""

    classes: tuple[str, ...]

    @classmethod
    def of(cls, table: Table, column: str, count: int) -> Classes:
        """Return the classes of the training rows, sorted: integers by value, then texts.

        Raises DataInvalid unless the column has exactly `count` different values.
        """
        known = table.known[column]
        found = sorted((known[code] for code in np.unique(table.codes(column))), key=_as_ordered)
        if len(found) != count:
            few = ", ".join(map(shown, found[:_SHOWN])) + (", ..." if len(found) > _SHOWN else "")
            said = f"{len(found)} classes, {few}" if len(found) > 1 else f"one class only, {few}"
            raise DataInvalid(
                f"{table.path}: {plain(column)} has {said}, in the training rows, but "
                f"task.tables.classes = {count}"
            )
        return cls(classes=tuple(found))

    def applied(self, table: Table, column: str) -> Codes:
        number = {name: at for at, name in enumerate(self.classes)}
        known, codes = table.known[column], table.codes(column)
        found: Codes = np.array([number.get(cell, -1) for cell in known], np.int64)[codes]
        if (found < 0).any():
            row = int((found < 0).argmax())
            raise DataInvalid(
                f"{table.place(row)}: {plain(column)} = {shown(known[codes[row]])} is a "
                f"class that no training row has"
            )
        return found


class Encoding(Stored):
    """The encodings of a party's columns, in order, and (at the leader) of the labels."""

    what = "an encoding of a table"

    columns: dict[str, Numbers | Words]
    label: Classes | Scale | None = None

    @property
    def kinds(self) -> dict[str, Kind]:
        """Return each number column's kind of content, such as "date"."""
        return {name: column.kind for name, column in self._numbers.items()}

    def fits(self, places: Mapping[str, int], bins: int) -> bool:
        """Return True if the encoding has the sizes that `places` and `bins` ask for.

        `places` maps the name of each word column to its number of indices, the last of which is
        for all unlisted words. `bins` is the number of intervals of every number column.
        """
        words = all(len(made.words) < made.places for made in self._words.values())
        numbers = all(len(made.edges) == bins - 1 for made in self._numbers.values())
        return words and numbers and places == {n: made.places for n, made in self._words.items()}

    @property
    def features(self) -> Features:
        """Return the encoding's sizes: intervals per number column, indices per word column."""
        return Features(
            intervals=tuple(len(column.edges) + 1 for column in self._numbers.values()),
            places=tuple(column.places for column in self._words.values()),
        )

    def applied(self, *tables: Table) -> list[dict[str, torch.Tensor]]:
        """Encode tables as tensors `numbers`, `intervals` and `words`, with a column per feature.

        All tables must be selections of rows of the same file.
        """
        if not self.columns:
            return [{} for _ in tables]
        made, file = self.features, tables[0]
        widths: dict[str, tuple[int, npt.DTypeLike]] = {
            "numbers": (len(made.intervals), np.float32),
            "intervals": (len(made.intervals), narrowest(max(made.intervals, default=1))),
            "words": (len(made.places), narrowest(max(made.places, default=1))),
        }
        stored = [
            {key: mapped(len(table), *each) for key, each in widths.items()} for table in tables
        ]
        places = {name: word.of_known(file, name) for name, word in self._words.items()}

        def encode(first: int, pieces: slice) -> None:
            columns = {name: file.spool.read(name, pieces) for name in self.columns}
            count = len(next(iter(columns.values())))
            encoded = {key: np.empty((count, *each[:1]), each[1]) for key, each in widths.items()}
            for at, (name, number) in enumerate(self._numbers.items()):
                scaled, intervals = encoded["numbers"][:, at], encoded["intervals"][:, at]
                number.encode(columns[name], scaled, intervals)
            for at, (name, known) in enumerate(places.items()):
                encoded["words"][:, at] = known[columns[name]]
            for table, arrays in zip(tables, stored, strict=True):
                rows, chosen = table.within(first, count)
                for key, (array, _) in arrays.items():
                    # Without "clip", NumPy would copy the result.
                    np.take(encoded[key], chosen, axis=0, out=array[rows], mode="clip")
                self._check(table, arrays["numbers"][0], rows)

        with ThreadPoolExecutor(THREADS) as threads:
            batches = file.spool.batches(next(iter(self.columns)), _TOGETHER)
            for _ in threads.map(encode, *zip(*batches, strict=True)):
                pass
        return [{key: tensor for key, (_, tensor) in arrays.items()} for arrays in stored]

    def _check(self, table: Table, numbers: Array, rows: slice) -> None:
        if not np.isfinite(numbers[rows]).all():
            for at, (name, number) in enumerate(self._numbers.items()):
                number.scale.check(table, name, numbers[rows, at], rows.start)

    @property
    def _numbers(self) -> dict[str, Numbers]:
        return {name: made for name, made in self.columns.items() if isinstance(made, Numbers)}

    @property
    def _words(self) -> dict[str, Words]:
        return {name: made for name, made in self.columns.items() if isinstance(made, Words)}


def _quantiles(ordered: Float64s, shares: Float64s) -> Float64s:
    at = shares * (len(ordered) - 1)
    low = np.floor(at).astype(np.int64)
    first, second = ordered[low], ordered[np.minimum(low + 1, len(ordered) - 1)]
    rest, between = at - low, second - first
    return np.where(rest < 0.5, first + between * rest, second - between * (1 - rest))


def _present(table: Table, column: str) -> Float64s:
    values = table.numbers(column)
    missing = np.isnan(values)
    present: Float64s = values[~missing] if missing.any() else values
    if not len(present):
        raise DataInvalid(f"{table.path}: {plain(column)} is empty in every training row")
    return present


def _as_ordered(text: str) -> tuple[int, int, str]:
    digits = text.removeprefix("-")
    whole = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS
    return (0, int(text), text) if whole else (1, 0, text)

"""Encodes a row as a bounded vector: a one-hot code of its cell, or powers of scaled numbers.

An excluded row, such as one with a missing value, has the zero vector. (The exception is `Below`,
which puts such a row into its only cell with some probability.) `half` is half the largest distance
between the vectors of two possible rows, excluded or not. The noise of a sum is proportional to
`half`. The `centre` is public. Every row's vector is within √2 · half of it.

    one-hot, 1 cell     half 1/2, centre 1/2
    one-hot, k cells    half 1/√2, centre 1/k in every entry
    mean                (x, 1), x in [-1, 1]            half 1, centre (0, 1)
    variance            (x, x² - 1, 1)                  half 1, centre (0, 0, 1)
    correlation         (x, y, x² - 1, y² - 1, xy, 1)   half √2, centre (0, 0, 0, 0, 0, 1)

Subtracting 1 from the squares makes the longest vectors shorter. Without it, a correlation's vector
could be √5 away from this centre, which is more than √2 · half = 2.

Proof for the correlation; mean and variance are special cases. Two rows have the scaled numbers (x,
y) and (x', y'). With u = |x - x'| and s = |y - y'|, x + x' is at most 2 - u and y + y' at most 2 -
s in magnitude. The squared distance of the vectors is then at most

    h(u, s) = g(u) + g(s) + (u + s - us)²,    g(u) = u² (1 + (2 - u)²),    0 <= u, s <= 2.

h rises in u if s <= 1, because g rises on [0, 2], and in s if u <= 1. With u = 1 + a and s = 1 + v
above 1, h rises in u too: g'(u) = 2 (1 - a + 2a³) outweighs the other term, -2v (1 - av). So the
largest value of h has u = 2 or s = 2. By symmetry, let u = 2: h(2, s) = 7 + (s - 1)⁴ <= 8.

The squared length of a vector is at most 2 for a mean, 2 for a variance and 4 for a correlation.
`Grouped` gives the rows of each group their own entries of a longer vector, and zeros elsewhere. So
the squared distance of two rows of different groups is the sum of their squared lengths, which is
at most (2 · half)².
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedveil.base.array_types import Bools, Float64s, Int64s
from fedveil.entropy import Entropy
from fedveil.statistics.tables import Table


@dataclass(frozen=True)
class Rows:
    """The encoded rows of a table: a vector of `width` entries for each row.

    - `values`, [rows, width], has the vectors. It is None for one-hot codes.
    - `cells[i]` is the cell of row i in one-hot codes: the index of the 1 in its vector, or -1 if
      its vector is zero. `cells` is None if `values` is not.
    - `moved` marks rows whose value was moved into the question's range. Excluded rows are not
      marked.
    - `lost` marks rows that are excluded because a value is missing or has no cell. Rows that
      `without` excludes are not marked.
    - `spare[i]` is the cell into which row i is put if it is excluded, by `lost` or by `without`,
      or -1 for the zero vector. If `spare` is None, every excluded row has the zero vector.
    """

    width: int
    moved: Bools
    lost: Bools
    cells: Int64s | None = None
    values: Float64s | None = None
    spare: Int64s | None = None

    def total(self, rows: Int64s) -> Float64s:
        """Return the sum of the vectors of the rows at the positions `rows`."""
        if self.values is not None:
            summed: Float64s = self.values[rows].sum(0)
            return summed
        assert self.cells is not None, "a row has either"
        cells = self.cells[rows]
        return np.bincount(cells[cells >= 0], minlength=self.width).astype(np.float64)

    def without(self, keep: Bools) -> Rows:
        """Return a copy of equal length that also excludes the rows for which `keep` is False."""
        gone = ~keep
        spare = -1 if self.spare is None else self.spare
        cells = None if self.cells is None else np.where(keep, self.cells, spare)
        values = None if self.values is None else np.where(keep[:, None], self.values, 0.0)
        return Rows(self.width, self.moved & ~gone, self.lost & ~gone, cells, values, self.spare)


class Encoding(ABC):
    """Turns a table's rows into bounded vectors of `width` entries.

    `spare` is the probability that an excluded row is put into the first cell. Otherwise it has the
    zero vector.
    """

    width: int
    spare: float = 0.0

    @abstractmethod
    def rows(self, table: Table, entropy: Entropy) -> Rows:
        """Encode every row of `table`, independently of all other rows.

        `entropy` is the randomness of encodings that make random choices. These are two subclasses:
        `Ends` rounds numbers at random, and `Below` puts some excluded rows into its only cell.
        """

    @property
    @abstractmethod
    def centre(self) -> Float64s:
        """Return a public vector that is near every row's vector: at most √2 · `half` away.

        `half` is half the largest distance between the vectors of two possible rows.
        """

    @property
    @abstractmethod
    def half(self) -> float:
        """Return half the largest distance between the vectors of two possible rows."""


class Axis(ABC):
    """The cells of one column: categories, or intervals of numbers. `labels` names each cell."""

    column: str
    labels: Sequence[str]

    @abstractmethod
    def cells(self, table: Table) -> tuple[Int64s, Bools]:
        """Return each row's cell index, and a mask of the rows whose value was moved into range.

        The index of a row without a cell is -1.
        """


class Bins(Axis):
    """Cells between increasing edges. Each cell includes its lower edge, the last cell both edges.

    If `clamp` is True, a number outside the edges is moved into the first or last cell. Otherwise
    it has no cell.
    """

    def __init__(self, column: str, edges: Sequence[float], *, clamp: bool = False) -> None:
        self.column, self.edges, self._clamp = column, np.asarray(edges, np.float64), clamp
        last = len(edges) - 2
        self.labels = [
            f"[{low:.15g}, {high:.15g}{']' if i == last else ')'}"
            for i, (low, high) in enumerate(pairwise(edges))
        ]

    def cells(self, table: Table) -> tuple[Int64s, Bools]:
        values = table.numbers(self.column)
        low, high = self.edges[0], self.edges[-1]
        outside = (values < low) | (values > high)
        inside = np.clip(values, low, high) if self._clamp else values
        last = len(self.labels) - 1
        found = np.minimum(np.searchsorted(self.edges, inside, side="right") - 1, last)
        missing = np.isnan(values) | (outside & (not self._clamp))
        return np.where(missing, -1, found), outside & self._clamp


class Categories(Axis):
    """A cell for each listed word. Any other word has no cell."""

    def __init__(self, column: str, words: Sequence[object]) -> None:
        self.column = column
        self.labels = [str(word) for word in words]

    def cells(self, table: Table) -> tuple[Int64s, Bools]:
        place = {word: number for number, word in enumerate(self.labels)}
        known, inverse = np.unique(table.words(self.column), return_inverse=True)
        found = np.array([place.get(str(word), -1) for word in known], np.int64)[inverse]
        return found, np.zeros(len(found), np.bool_)


class Cells(Encoding):
    """One-hot codes over all combinations of the axes' cells. Without axes, there is one cell."""

    def __init__(self, *axes: Axis) -> None:
        self.axes = axes
        self.width = math.prod(len(axis.labels) for axis in axes)

    def rows(self, table: Table, entropy: Entropy) -> Rows:
        cells = np.zeros(len(table), np.int64)
        moved, lost = np.zeros((2, len(table)), np.bool_)
        for axis in self.axes:
            found, outside = axis.cells(table)
            cells = cells * len(axis.labels) + found
            lost, moved = lost | (found < 0), moved | outside
        return Rows(self.width, moved & ~lost, lost, np.where(lost, -1, cells))

    @property
    def centre(self) -> Float64s:
        return np.full(self.width, 1 / max(self.width, 2))

    @property
    def half(self) -> float:
        return 0.5 if self.width == 1 else math.sqrt(0.5)


class Scaled:
    """The numbers of a column, clipped to the range `ends` and scaled to [-1, 1]."""

    def __init__(self, column: str, ends: Sequence[float]) -> None:
        self.column, (self.low, self.high) = column, ends
        self.middle, self.half = (self.low + self.high) / 2, (self.high - self.low) / 2

    def values(self, table: Table) -> tuple[Float64s, Bools, Bools]:
        """Return the scaled numbers, a mask of clipped numbers, and a mask of missing numbers."""
        values = table.numbers(self.column)
        missing = np.isnan(values)
        outside = (values < self.low) | (values > self.high)
        inside = np.clip(np.where(missing, self.middle, values), self.low, self.high)
        return (inside - self.middle) / self.half, outside, missing


class Moments(Encoding):
    """Powers of one or two scaled columns, from which a mean, a variance or a correlation follows.

    The vector of a row is (x, 1), or (x, x² - 1, 1) if `squares` is True, for the column's number
    x, scaled to [-1, 1]. For two columns, it is (x, y, x² - 1, y² - 1, xy, 1). The subtracted 1
    makes the longest vectors shorter.
    """

    def __init__(self, columns: Sequence[Scaled], *, squares: bool) -> None:
        self.columns, self._squares = columns, squares
        self.width = {1: 3 if squares else 2, 2: 6}[len(columns)]

    def rows(self, table: Table, entropy: Entropy) -> Rows:
        scaled = [column.values(table) for column in self.columns]
        xs = [x for x, _, _ in scaled]
        parts = [*xs]
        if self._squares:
            parts += [x**2 - 1 for x in xs]
        if len(xs) == 2:
            parts.append(xs[0] * xs[1])
        moved = np.logical_or.reduce([outside for _, outside, _ in scaled])
        lost = np.logical_or.reduce([missing for _, _, missing in scaled])
        values = np.stack([*parts, np.ones(len(table))], axis=1)
        return Rows(self.width, moved & ~lost, lost, values=np.where(lost[:, None], 0.0, values))

    @property
    def centre(self) -> Float64s:
        return np.array([0.0] * (self.width - 1) + [1.0])

    @property
    def half(self) -> float:
        return math.sqrt(2.0) if len(self.columns) == 2 else 1.0


class Ends(Cells):
    """One-hot codes from which the server estimates moments of one or two columns.

    Each number is scaled to [-1, 1], and then rounded at random to -1 or 1, independently `draws`
    times. The cell of a row says how many of each column's roundings are 1. If u and u' are
    roundings of the scaled number x, and v is a rounding of the scaled number y, then E[u] = x,
    E[u u'] = x² and E[u v] = x y. The rounding costs no privacy, because it depends only on the row
    itself.
    """

    def __init__(self, columns: Sequence[Scaled], draws: int) -> None:
        super().__init__()
        self.columns, self._draws = columns, draws
        self.width = (draws + 1) ** len(columns)

    def rows(self, table: Table, entropy: Entropy) -> Rows:
        cells = np.zeros(len(table), np.int64)
        moved, lost = np.zeros((2, len(table)), np.bool_)
        for column in self.columns:
            x, outside, missing = column.values(table)
            words = entropy.words(self._draws * len(x)).reshape(self._draws, len(x))
            upper = (words >> np.uint64(11)) * 2.0**-53 < (1 + x) / 2
            cells = cells * (self._draws + 1) + upper.sum(0)
            moved, lost = moved | outside, lost | missing
        return Rows(self.width, moved & ~lost, lost, np.where(lost, -1, cells))


class Below(Encoding):
    """A single cell, for rows whose number in a column is below `edge`.

    A row is excluded if its number is missing, if it is in none of the `groups`, or if it does not
    meet a condition of the question. An excluded row is put into the cell with probability `q`.

    A search for the quantile q compares the number of rows in the cell with q times the number of
    all rows. Each excluded row adds q to both, in expectation. So only the other rows decide which
    of the two is larger.
    """

    width = 1

    def __init__(self, column: Scaled, edge: float, q: float, *groups: Axis) -> None:
        self.column, self.edge, self.spare, self.groups = column, edge, q, groups

    def rows(self, table: Table, entropy: Entropy) -> Rows:
        _, moved, lost = self.column.values(table)
        for group in self.groups:
            lost = lost | (group.cells(table)[0] < 0)
        uniform = (entropy.words(len(lost)) >> np.uint64(11)) * 2.0**-53
        spare = np.where(uniform < self.spare, 0, -1)
        own = np.where(table.numbers(self.column.column) < self.edge, 0, -1)
        return Rows(1, moved & ~lost, lost, np.where(lost, spare, own), spare=spare)

    @property
    def centre(self) -> Float64s:
        return np.full(1, 0.5)

    @property
    def half(self) -> float:
        return 0.5


class Grouped(Encoding):
    """Encodes the rows of each group with `inner`. A group has its own entries of the vector.

    All other entries of a row's vector are 0. A group is a value of a column.
    """

    def __init__(self, inner: Encoding, groups: Categories) -> None:
        self.inner, self.groups = inner, groups
        self.width = inner.width * len(groups.labels)

    def rows(self, table: Table, entropy: Entropy) -> Rows:
        inner, (group, _) = self.inner.rows(table, entropy), self.groups.cells(table)
        lost, width = inner.lost | (group < 0), self.inner.width
        if inner.cells is not None:
            cells = np.where(lost, -1, group * width + inner.cells)
            return Rows(self.width, inner.moved & ~lost, lost, cells)
        assert inner.values is not None, "a row has either"
        values = np.zeros((len(table), self.width))
        for number in range(len(self.groups.labels)):
            own = (group == number) & ~lost
            values[own, number * width : (number + 1) * width] = inner.values[own]
        return Rows(self.width, inner.moved & ~lost, lost, values=values)

    @property
    def centre(self) -> Float64s:
        return np.zeros(self.width)

    @property
    def half(self) -> float:
        return self.inner.half

"""Drift: how much a new file's rows differ from the training rows of a party's encoding.

A summary of every column is saved at training. Two statistics compare new rows with this summary:

- the population stability index, Σ (q - p) ln(q / p) over the column's groups, where p is a group's
  share of the training rows and q its share of the new rows. The groups of numbers are ten
  intervals between training quantiles, and the missing cells. The groups of words are the most
  frequent words, all others, and the missing cells. Half a row is added to each group. By
  convention, the distribution is stable below 0.1 and has shifted above 0.25;
- for numbers, the Kolmogorov-Smirnov statistic, the largest difference between the shares of rows
  up to a value. It is taken at 128 training quantiles, so it is too small by up to 1/128.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Self, TypeAlias

import numpy as np
from pydantic import Field, model_validator
from scipy.special import kolmogorov

from fedveil.base.array_types import Float64s
from fedveil.base.quantity import quantity
from fedveil.settings.allowed import plain, shown
from fedveil.settings.settings import Settings
from fedveil.settings.stored import Stored
from fedveil.tasks.tables.table_file import Table

#: The least number of new rows that are compared.
LEAST_ROWS = 100
STABLE, SHIFTED = 0.1, 0.25
#: The significance level of the Kolmogorov-Smirnov test: one false alarm in a thousand columns.
_UNLIKELY = 0.001
_POINTS, _GROUPS = 128, 10
#: The most words with a group each. All rarer words form one group, which hides new words.
_MOST_WORDS = 10_000
_SHOWN = 3

Count: TypeAlias = Annotated[int, Field(ge=0)]


class NumberSummary(Settings):
    """Summary of a number column: quantiles of its training rows, and a histogram of them.

    `shares` has the share of rows up to each quantile in `points`. `groups` are the upper bounds of
    the histogram's intervals. `counts` has the number of rows in each interval, then the number
    above the last bound, then the number of rows without a value.
    """

    points: tuple[float, ...] = Field(min_length=1)
    shares: tuple[float, ...]
    groups: tuple[float, ...]
    counts: tuple[Count, ...]

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if len(self.shares) != len(self.points) or len(self.counts) != len(self.groups) + 2:
            raise ValueError("its lengths differ")
        return self

    @classmethod
    def of(cls, table: Table, column: str) -> NumberSummary:
        values = table.numbers(column)
        present = np.sort(values[~np.isnan(values)])
        points = np.unique(np.quantile(present, np.linspace(0, 1, _POINTS + 1), method="lower"))
        places = np.linspace(0, 1, _GROUPS + 1)[1:-1]
        groups = np.unique(np.quantile(present, places, method="lower"))
        return cls(
            points=tuple(points.tolist()),
            shares=tuple(_up_to(present, points).tolist()),
            groups=tuple(groups.tolist()),
            counts=tuple(_counted(values, groups)),
        )

    def ks(self, present: Float64s) -> float:
        return float(np.abs(_up_to(np.sort(present), self.points) - self.shares).max())


class WordSummary(Settings):
    """Summary of a word column: counts of frequent words, of other words and of empty cells."""

    words: dict[str, Count]
    others: Count
    missing: Count

    @classmethod
    def of(cls, table: Table, column: str) -> WordSummary:
        counts = _word_counts(table, column)
        missing = counts.pop("", 0)
        first = sorted(counts, key=lambda word: (-counts[word], word))[:_MOST_WORDS]
        others = sum(counts.values()) - sum(counts[word] for word in first)
        return cls(words={word: counts[word] for word in first}, others=others, missing=missing)


class Summary(Stored):
    """Summaries of a party's columns over the training rows."""

    what = "a summary of a table"

    rows: int = Field(ge=1, le=1 << 53)
    columns: dict[str, NumberSummary | WordSummary]

    @model_validator(mode="after")
    def _counts(self) -> Self:
        for column in self.columns.values():
            if isinstance(column, NumberSummary):
                counted = sum(column.counts)
            else:
                counted = sum(column.words.values()) + column.others + column.missing
            if counted != self.rows:
                raise ValueError("it does not count every row")
        return self

    def covers(self, names: Collection[str], words: Sequence[str]) -> bool:
        """Return True if this summarises the columns `names`, those in `words` as words."""
        of_words = [n for n, column in self.columns.items() if isinstance(column, WordSummary)]
        return list(self.columns) == list(names) and of_words == list(words)

    @classmethod
    def of(cls, table: Table, names: Sequence[str], words: Sequence[str]) -> Summary:
        """Summarise the columns `names` of the training rows. Columns in `words` contain words."""
        columns: dict[str, NumberSummary | WordSummary] = {
            name: (WordSummary if name in words else NumberSummary).of(table, name)
            for name in names
        }
        return cls(rows=len(table), columns=columns)


@dataclass(frozen=True)
class ColumnDrift:
    """Comparison of one column between new rows and training rows.

    `unseen` has the words that no training row has, each with the number of new rows that have it.
    It is empty if the training summary does not list all words. `psi` is the population stability
    index, or None for too few new rows. `ks` is the Kolmogorov-Smirnov statistic, and `ks_p` its
    p-value. Both are None for words, and if too few new rows have a number.
    """

    column: str
    rows: int
    missing: int
    unseen: dict[str, int]
    psi: float | None
    ks: float | None
    ks_p: float | None

    @property
    def has_shifted(self) -> bool:
        return (self.psi or 0) > SHIFTED or (self.ks_p is not None and self.ks_p < _UNLIKELY)

    def __str__(self) -> str:
        found = []
        if self.missing:
            found.append(f"{self.missing:,} of {self.rows:,} cells are missing")
        if self.unseen:
            some = ", ".join(map(shown, list(self.unseen)[:_SHOWN]))
            more = ", ..." if len(self.unseen) > _SHOWN else ""
            rows = sum(self.unseen.values())
            having = f"{quantity(rows, 'row')} {'has' if rows == 1 else 'have'}"
            found.append(f"{having} words that no training row has: {some}{more}")
        if self.psi is not None:
            word = "stable" if self.psi < STABLE else "shifted" if self.psi > SHIFTED else "moving"
            found.append(f"population stability index {self.psi:.3f} ({word})")
        if self.ks is not None and self.ks_p is not None:
            found.append(f"Kolmogorov-Smirnov {self.ks:.3f} (p {self.ks_p:.2g})")
        return f"{plain(self.column)}: {'; '.join(found) or 'nothing to report'}"


def drift(summary: Summary, table: Table) -> list[ColumnDrift]:
    """Compare each column of the new rows with the training rows, in the summary's order."""
    return [
        _of_numbers(name, column, summary.rows, table)
        if isinstance(column, NumberSummary)
        else _of_words(name, column, table)
        for name, column in summary.columns.items()
    ]


def _of_numbers(name: str, trained: NumberSummary, rows: int, table: Table) -> ColumnDrift:
    values = table.numbers(name)
    present = values[~np.isnan(values)]
    psi = ks = likely = None
    if len(values) >= LEAST_ROWS:
        psi = _psi(trained.counts, _counted(values, np.array(trained.groups)))
    if len(present) >= LEAST_ROWS:
        ks = trained.ks(present)
        before = rows - trained.counts[-1]
        likely = float(kolmogorov(ks * math.sqrt(before * len(present) / (before + len(present)))))
    return ColumnDrift(name, len(values), len(values) - len(present), {}, psi, ks, likely)


def _of_words(name: str, trained: WordSummary, table: Table) -> ColumnDrift:
    counts = _word_counts(table, name)
    missing = counts.pop("", 0)
    new = {word: count for word, count in counts.items() if word not in trained.words}
    psi = None
    if len(table) >= LEAST_ROWS:
        known = list(trained.words)
        before = [*trained.words.values(), trained.others, trained.missing]
        psi = _psi(before, [*(counts.get(word, 0) for word in known), sum(new.values()), missing])
    unseen = {} if trained.others else new
    return ColumnDrift(name, len(table), missing, unseen, psi, None, None)


def _psi(before: Sequence[int], now: Sequence[int]) -> float:
    shares = [np.array(counts) + 0.5 for counts in (before, now)]
    p, q = (counts / counts.sum() for counts in shares)
    return float(((q - p) * np.log(q / p)).sum())


def _up_to(ordered: Float64s, points: Float64s | Sequence[float]) -> Float64s:
    return np.searchsorted(ordered, points, side="right") / len(ordered)


def _counted(values: Float64s, groups: Float64s) -> list[int]:
    present = values[~np.isnan(values)]
    found = np.bincount(np.searchsorted(groups, present, side="left"), minlength=len(groups) + 1)
    return [*found.tolist(), len(values) - len(present)]


def _word_counts(table: Table, column: str) -> dict[str, int]:
    known = table.known[column]
    counts = np.bincount(table.codes(column), minlength=len(known)).tolist()
    return {word: count for word, count in zip(known, counts, strict=True) if count}

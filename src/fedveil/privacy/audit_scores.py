"""Scores with which an audit distinguishes a mechanism's outputs for two inputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedveil.base.array_types import Array, Float64s, Int64s
from fedveil.errors import InvalidValue

#: Returns a number for each row of a table of outputs: larger if the first input is likelier.
Scorer: TypeAlias = Callable[[Float64s], Float64s]

#: A column with more distinct values than this is cut into this many bins.
_BINS = 32


def as_rows(outputs: Sequence[Any]) -> Float64s:
    """Convert each output to a row: the count of its numbers, the numbers, and NaN as padding."""
    parts = [np.concatenate([np.empty(0), *_numbers(output)]) for output in outputs]
    lengths = [len(part) for part in parts]
    rows = np.full((len(parts), 1 + max(lengths)), np.nan)
    rows[:, 0] = lengths
    for row, part in zip(rows, parts, strict=True):
        row[1 : 1 + len(part)] = part
    return rows + 0.0  # make -0.0 equal to 0.0


def _numbers(output: Any) -> Iterator[Float64s]:
    if isinstance(output, str):
        output = output.encode()
    if isinstance(output, bytes | bytearray | memoryview):
        yield np.frombuffer(output, np.uint8).astype(np.float64)
    elif output is None:
        yield np.array([math.nan])
    elif isinstance(output, int | float | np.generic | np.ndarray):
        array = np.asarray(output)
        if array.dtype.kind not in "biuf":
            raise InvalidValue(f"an output holds an array of dtype {array.dtype}: pass score=")
        yield array.astype(np.float64).ravel()
    elif isinstance(output, Mapping):
        for name in sorted(output):
            yield from _numbers(output[name])
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from _numbers(getattr(output, field.name))
    elif isinstance(output, Sequence):
        for item in output:
            yield from _numbers(item)
    else:
        raise InvalidValue(f"an output is a {type(output).__name__}: pass score=")


def learned(ahead: Float64s, back: Float64s) -> list[Scorer]:
    """Return scorers that are trained to distinguish outputs for two inputs.

    The rows of `ahead` are outputs for the first input, and those of `back` for the second.
    """
    columns = [_Column(i, ahead[:, i], back[:, i]) for i in range(ahead.shape[1])]
    telling = [column for column in columns if column.excess > 5.0]
    best = max(columns, key=lambda column: column.excess)
    scorers: list[Scorer] = [_added(columns), best]
    if 1 < len(telling) < len(columns):
        scorers.append(_added(telling))
    scorers.append(_linear(ahead, back))
    whole = _whole_rows(ahead, back)
    return scorers if whole is None else [whole, *scorers]


class _Column:
    """Scores a row by its value in one column.

    The column's values are sorted into bins. The score is the log ratio of two frequencies of the
    value's bin: among outputs for the first input, and among outputs for the second.
    """

    def __init__(self, index: int, ahead: Float64s, back: Float64s) -> None:
        self._index = index
        both = np.concatenate([ahead, back])
        values = np.unique(both[~np.isnan(both)])
        if len(values) > _BINS:
            picked = np.linspace(0, 1, _BINS + 1)[1:-1]
            self._edges = np.unique(np.quantile(both[~np.isnan(both)], picked))
        else:
            self._edges = (values[1:] + values[:-1]) / 2
        size = len(self._edges) + 2  # the last bin is for NaN
        hits = np.bincount(self._bins(ahead), minlength=size)
        others = np.bincount(self._bins(back), minlength=size)
        self._scores = np.log((hits + 0.5) / (others + 0.5))
        #: Number of standard deviations by which the two columns differ more than chance (G-test).
        self.excess = _excess(hits, others)

    def _bins(self, values: Float64s) -> Int64s:
        bins = np.searchsorted(self._edges, values, side="right").astype(np.int64)
        return np.where(np.isnan(values), len(self._edges) + 1, bins)

    def __call__(self, rows: Float64s) -> Float64s:
        return self._scores[self._bins(rows[:, self._index])]


def _excess(hits: Array, others: Array) -> float:
    seen = (hits + others) > 0
    freedom = int(seen.sum()) - 1
    if freedom == 0:
        return -math.inf
    expected = (hits[seen] + others[seen]) / 2
    statistic = sum(
        2 * float((k[k > 0] * np.log(k[k > 0] / expected[k > 0])).sum())
        for k in (hits[seen], others[seen])
    )
    return (statistic - freedom) / math.sqrt(2 * freedom)


def _added(columns: Sequence[Scorer]) -> Scorer:
    def score(rows: Float64s) -> Float64s:
        total = np.zeros(len(rows))
        for column in columns:
            total += column(rows)
        return total

    return score


def _linear(ahead: Float64s, back: Float64s) -> Scorer:
    spread = ahead.var(axis=0) + back.var(axis=0)
    usable = np.flatnonzero(spread > 0)  # no NaN either
    weights = (ahead.mean(axis=0) - back.mean(axis=0))[usable] / spread[usable]
    return lambda rows: np.nan_to_num(rows[:, usable]) @ weights


def _whole_rows(ahead: Float64s, back: Float64s) -> Scorer | None:
    """Return a scorer that compares how often a row occurs in `ahead` and in `back`.

    The score is the log ratio of the two counts. Returns None if few rows occur repeatedly.
    """
    keys = [[row.tobytes() for row in side] for side in (ahead, back)]
    counts: dict[bytes, list[float]] = {}
    for side in (0, 1):
        for key in keys[side]:
            counts.setdefault(key, [0.5, 0.5])[side] += 1
    if len(counts) > len(ahead) / 8:
        return None
    scores = {key: math.log(hit / other) for key, (hit, other) in counts.items()}
    return lambda rows: np.array([scores.get(row.tobytes(), 0.0) for row in rows])

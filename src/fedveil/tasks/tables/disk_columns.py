"""Columns on disk, in unnamed files below `TMPDIR` that disappear when the process ends."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.array_types import Array


class Spool:
    """Stores columns on disk. They are appended piece by piece, and read as a whole."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="fedveil-")  # noqa: SIM115 - closed with this
        self._pieces: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._types: dict[str, np.dtype[Any]] = {}
        self._last: tuple[str, Array] | None = None

    def append(self, columns: Sequence[str], piece: Array) -> None:
        """Append the rows `piece` to each of the columns `columns`.

        All pieces of a column must have the same type.
        """
        place = (self._file.seek(0, 2), len(piece))
        self._file.write(np.ascontiguousarray(piece).data)
        for column in columns:
            self._types[column] = piece.dtype
            self._pieces[column].append(place)

    def rename(self, old: str, new: str) -> None:
        self._pieces[new], self._types[new] = self._pieces.pop(old), self._types.pop(old)

    def column(self, name: str) -> Array:
        """Return a whole column."""
        if self._last is None or self._last[0] != name:
            self._last = (name, self._read(name))
        return self._last[1]

    def batches(self, names: Collection[str], least: int) -> Iterator[tuple[int, dict[str, Array]]]:
        """Yield the columns `names` in batches of rows, each with the index of its first row.

        Only the last batch may have fewer than `least` rows.
        """
        ends = np.cumsum([length for _, length in self._pieces[next(iter(names))]])
        first = done = 0
        for piece, end in enumerate(ends.tolist(), 1):
            if end - done >= least or piece == len(ends):
                yield done, {name: self._read(name, slice(first, piece)) for name in names}
                first, done = piece, end

    def _read(self, name: str, chosen: slice = slice(None)) -> Array:
        kind, pieces = self._types[name], self._pieces[name][chosen]
        whole = np.empty(sum(length for _, length in pieces), kind)
        filled = 0
        for start, length in pieces:
            self._file.seek(start)
            self._file.readinto(whole[filled : filled + length].view(np.uint8).data)
            filled += length
        whole.flags.writeable = False
        return whole


def mapped(rows: int, columns: int, kind: npt.DTypeLike) -> tuple[Array, torch.Tensor]:
    """Return an array [rows, columns] of zeros on disk, and a tensor that shares its memory."""
    if not rows * columns:
        empty = np.zeros((rows, columns), kind)
        return empty, torch.from_numpy(empty)
    with tempfile.TemporaryFile(prefix="fedveil-") as file:
        array: Array = np.memmap(file, kind, "w+", shape=(rows, columns)).view(np.ndarray)
    return array, torch.from_numpy(array)


def narrowest(count: int) -> type[np.integer[Any]]:
    """Return torch's smallest integer type that can hold 0..count - 1."""
    for kind in (np.uint8, np.int16, np.int32):
        if count - 1 <= np.iinfo(kind).max:
            return kind
    return np.int64

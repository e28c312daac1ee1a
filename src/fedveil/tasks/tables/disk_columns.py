"""Columns on disk, in unnamed files below `TMPDIR` that disappear when the process ends."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.array_types import Array
from fedveil.base.files import write_all
from fedveil.errors import DataUnavailable

#: The threads that read, summarise or encode columns.
THREADS: Final = 2


class Spool:
    """Stores columns on disk. One thread appends all pieces, then several threads can read."""

    def __init__(self) -> None:
        with _space():
            # Unbuffered, because a buffer's last bytes are written only when the file is closed.
            self._file = tempfile.TemporaryFile(prefix="fedveil-", buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._size = 0
        self._pieces: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._types: dict[str, np.dtype[Any]] = {}

    def append(self, columns: Sequence[str], piece: Array) -> None:
        """Append the rows of `piece` to each of `columns`. The rows are written to disk only once.

        All pieces of a column must have the same type.
        """
        with _space():
            write_all(self._file, np.ascontiguousarray(piece).view(np.uint8).data)
        for column in columns:
            self._types[column] = piece.dtype
            self._pieces[column].append((self._size, len(piece)))
        self._size += piece.nbytes

    def rename(self, old: str, new: str) -> None:
        self._pieces[new], self._types[new] = self._pieces.pop(old), self._types.pop(old)

    def batches(self, name: str, least: int) -> Iterator[tuple[int, slice]]:
        """Divide column `name` into batches of at least `least` rows, except the last batch.

        A batch consists of consecutive pieces, as they were appended. Yields the index of each
        batch's first row, and the slice of pieces with which `read` returns the batch.
        """
        ends = np.cumsum([length for _, length in self._pieces[name]]).tolist()
        first = done = 0
        for piece, end in enumerate(ends, 1):
            if end - done >= least or piece == len(ends):
                yield done, slice(first, piece)
                first, done = piece, end

    def read(self, name: str, chosen: slice = slice(None)) -> Array:
        """Return the rows of column `name`: of all pieces, or of those in the slice `chosen`."""
        kind, pieces = self._types[name], self._pieces[name][chosen]
        whole = np.empty(sum(length for _, length in pieces), kind)
        filled = 0
        for start, length in pieces:
            rows = whole[filled : filled + length]
            os.preadv(self._file.fileno(), [rows.view(np.uint8).data], start)
            filled += length
        whole.flags.writeable = False
        return whole


def mapped(rows: int, columns: int, kind: npt.DTypeLike) -> tuple[Array, torch.Tensor]:
    """Return an array of zeros on disk, and a tensor that shares its memory.

    The array has the shape [rows, columns] and the type `kind`.
    """
    if not rows * columns:
        empty = np.zeros((rows, columns), kind)
        return empty, torch.from_numpy(empty)
    with _space(), tempfile.TemporaryFile(prefix="fedveil-") as file:
        if hasattr(os, "posix_fallocate"):  # macOS has none
            # A full disk would otherwise end the process when the array is written.
            os.posix_fallocate(file.fileno(), 0, rows * columns * np.dtype(kind).itemsize)
        array: Array = np.memmap(file, kind, "w+", shape=(rows, columns)).view(np.ndarray)
    return array, torch.from_numpy(array)


@contextmanager
def _space() -> Iterator[None]:
    """Convert an OSError in a `with` block (for example, a full disk) into `DataUnavailable`."""
    try:
        yield
    except OSError as error:
        raise DataUnavailable(
            f"the columns of a table cannot be written below TMPDIR: {error.strerror or error}. "
            f"Set TMPDIR to a folder with enough space"
        ) from None


def narrowest(count: int) -> type[np.integer[Any]]:
    """Return the smallest of NumPy's uint8, int16, int32 and int64 that can hold 0..count - 1."""
    for kind in (np.uint8, np.int16, np.int32):
        if count - 1 <= np.iinfo(kind).max:
            return kind
    return np.int64

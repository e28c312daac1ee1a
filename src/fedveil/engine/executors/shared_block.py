"""Memory that the simulator's processes share.

A block of this memory has no name in the file system. So it is freed when the last process that
uses it ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 64


@dataclass(frozen=True)
class Span:
    """The position, type and shape of one array in a block of shared memory."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class SharedBlock:
    """Named arrays in one block of anonymous shared memory."""

    def __init__(self, descriptor: int, spans: Mapping[str, Span]) -> None:
        self.descriptor = descriptor
        self.spans = dict(spans)
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)

    @classmethod
    def allocate(cls, shapes: Mapping[str, tuple[npt.DTypeLike, tuple[int, ...]]]) -> SharedBlock:
        """Return a block of zeros, with arrays of the types and shapes in `shapes`."""
        spans: dict[str, Span] = {}
        offset = 0
        for name, (dtype, shape) in shapes.items():
            spans[name] = Span(offset, np.dtype(dtype), shape)
            offset += -(-spans[name].nbytes // _ALIGNMENT) * _ALIGNMENT
        descriptor = _anonymous_file()
        try:
            os.posix_fallocate(descriptor, 0, max(offset, 1))
            return cls(descriptor, spans)
        except OSError:
            os.close(descriptor)  # what was allocated would stay as long as this process
            raise

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> SharedBlock:
        block = cls.allocate({name: (a.dtype, a.shape) for name, a in arrays.items()})
        for name, array in arrays.items():
            block.array(name)[...] = array
        return block

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return the array `name`: a view that every process with the block can read and write."""
        span = self.spans[name]
        count = int(np.prod(span.shape, dtype=np.int64))
        return np.frombuffer(self._map, span.dtype, count, span.offset).reshape(span.shape)

    def close(self) -> None:
        """Close the block's descriptor. The memory is freed with the last view of it."""
        os.close(self.descriptor)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedveil", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

"""Encodes a report whose values are whole multiples of a grid step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base import reused_memory
from fedveil.base.array_types import Int64s, Uint8s, parts
from fedveil.base.message import Message, Value, take, take_array
from fedveil.base.packing import add_within, pack_parts, packed_size, unpack
from fedveil.errors import MessageInvalid

_BEYOND = "field multiples holds a value beyond its range"


class GridReport:
    """Encodes a vector whose values are whole multiples of `step`, as the fields of a report.

    A value is sent as its number of steps, from -`limit` to `limit`. All reports have equal length.
    `dimension` is the number of values. `kind` is the integer type that `read` returns.
    """

    fields: tuple[str, ...] = ("multiples", "step")

    def __init__(
        self, step: float, limit: int, dimension: int, kind: type[np.signedinteger[Any]]
    ) -> None:
        self.step = step
        self.limit = limit
        self.width = (2 * limit).bit_length()
        self._dimension = dimension
        self._size = packed_size(dimension, self.width)
        self._kind = kind

    def written(self, multiples: Int64s) -> dict[str, Value]:
        return self.written_parts(lambda part: multiples[part])

    def written_parts(self, multiples: Callable[[slice], Int64s]) -> dict[str, Value]:
        """Return the fields of a report: all values, packed, and the grid's `step`.

        `multiples(part)` must return the values in the slice `part`, divided by `step`. It is
        called for one slice after another.
        """
        packed = pack_parts(self._dimension, -self.limit, self.width, multiples)
        return {"multiples": packed, "step": self.step}

    def blank(self) -> dict[str, Value]:
        """Return the fields of a report with arbitrary values, to compute a report's length."""
        return {"multiples": np.empty(self._size, np.uint8), "step": self.step}

    def read(self, message: Message) -> npt.NDArray[Any]:
        """Return an untrusted report's values as numbers of steps, or raise `MessageInvalid`."""
        multiples = reused_memory.empty(self._dimension, self._kind)
        done = 0
        for part in self.read_parts(message):
            multiples[done : done + len(part)] = part
            done += len(part)
        return multiples

    def read_parts(self, message: Message) -> Iterator[npt.NDArray[Any]]:
        """Yield what `read` returns, one part after another."""
        packed = self._packed(message)
        yield from (self._some(packed, part) for part in parts(self._dimension))

    def read_last(self, message: Message) -> int:
        """Return the last value that `read` returns."""
        start = (self._dimension - 1) // 8 * 8
        return int(self._some(self._packed(message), slice(start, self._dimension))[-1])

    def _some(self, packed: Uint8s, some: slice) -> npt.NDArray[Any]:
        """Return the values in the slice `some`, which starts at a multiple of 8."""
        values = np.empty(some.stop - some.start, self._kind)
        begin = some.start // 8 * self.width
        bits = packed[begin : begin + packed_size(len(values), self.width)]
        if not unpack(bits, -self.limit, self.limit, self.width, values):
            raise MessageInvalid(_BEYOND)
        return values

    def add(self, message: Message, total: Int64s) -> None:
        """Add an untrusted report's values, as numbers of steps, to `total`.

        Raises `MessageInvalid`, as `read` does. Makes no copy of the values.
        """
        packed = self._packed(message)
        if not add_within(packed, -self.limit, self.limit, self.width, total):
            raise MessageInvalid(_BEYOND)

    def _packed(self, message: Message) -> Uint8s:
        if take(message, "step", float) != self.step:
            raise MessageInvalid("field step is not the step of this job's grid")
        return take_array(message, "multiples", "uint8", (self._size,))

"""Masks: vectors of uniform numbers modulo 2^bits, each the AES-256-CTR keystream of a seed.

Each element of a vector is stored in an unsigned integer (lane) of 32 bits, or of 64 bits if `bits`
is above 32. The lowest `bits` bits of a lane are the element. Lanes are added with wrap-around, and
`Ring.reduce` sets their other bits to 0. The keystream is read as little-endian lanes, whose
elements are uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base import reused_memory
from fedveil.base.array_types import Int64s
from fedveil.base.keystream import BLOCK_BYTES, Keystream
from fedveil.base.two_threads import by_halves
from fedveil.base.validate import integer

Lanes: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

# Keystream, zeros and a stretch of the vector fit the second-level cache together.
_STRETCH_BYTES = 1 << 17
_CIPHERS_AT_ONCE = 256
_SIGNED = 1 << 16


class Ring:
    """The integers modulo 2^bits, in which vectors are masked and summed."""

    def __init__(self, bits: int) -> None:
        self.bits = integer("bits", bits, 1, 64)
        self.lane: np.dtype[Any] = np.dtype("<u4" if bits <= 32 else "<u8")

    @classmethod
    def for_sum(cls, terms: int, largest: int, beyond: int = 0) -> Ring:
        """Return the smallest ring in which a sum of `terms` numbers cannot wrap.

        The magnitude of each number is at most `largest`. `beyond` is the largest magnitude of
        anything else that is added to the sum, such as noise. Raises `InvalidValue` if the ring
        would need more than 64 bits.
        """
        return cls((2 * (terms * largest + beyond)).bit_length() or 1)

    def elements(self, values: npt.NDArray[np.integer[Any]]) -> Lanes:
        """Convert whole numbers to elements of the ring, as unsigned integers of 32 or 64 bits.

        The result is not yet reduced modulo 2^bits.
        """
        return values.astype(self.lane)

    def reduce(self, lanes: Lanes) -> None:
        """Reduce the unsigned integers `lanes` to the ring's number of bits, in place."""
        if self.bits < 8 * self.lane.itemsize:
            lanes &= self.lane.type((1 << self.bits) - 1)

    def signed(self, lanes: Lanes, out: Int64s | None = None) -> Int64s:
        """Convert the ring elements `lanes` to whole numbers in -2^(bits-1) .. 2^(bits-1) - 1.

        The result is written to `out`, if given. `lanes` may share memory with the beginning of
        `out`.
        """
        numbers = reused_memory.empty(len(lanes), np.int64) if out is None else out
        spare = 64 - self.bits
        for end in range(len(lanes), 0, -_SIGNED):
            part = slice(max(0, end - _SIGNED), end)
            moved = lanes[part].astype(np.uint64) << np.uint64(spare)
            numbers[part] = moved.view(np.int64) >> np.int64(spare)
        return numbers


def add_masks(vector: Lanes, seeds: Sequence[tuple[bytes, bool]]) -> None:
    """Add the mask of each seed to `vector` in place, or subtract it.

    `seeds` has pairs of a seed and a flag. The mask is subtracted if the flag is False.
    """

    def add_some(some: slice) -> None:
        for start in range(0, len(seeds), _CIPHERS_AT_ONCE):
            chosen = seeds[start : start + _CIPHERS_AT_ONCE]
            Masks(chosen, vector.dtype, some.start).add_to(vector[some])

    by_halves(len(vector), add_some, BLOCK_BYTES // vector.itemsize)


class Masks:
    """Adds the masks of seeds to the stretches of a vector, one stretch after another.

    `seeds` are as in `add_masks`, and `lane` is the type of the vector's elements. The first
    stretch begins at the element `first`, where a block of the keystreams must start.
    """

    def __init__(
        self, seeds: Sequence[tuple[bytes, bool]], lane: np.dtype[Any], first: int = 0
    ) -> None:
        block = first * lane.itemsize // BLOCK_BYTES
        self._ciphers = [(Keystream(seed, block).write, plus) for seed, plus in seeds]
        self._buffer = memoryview(bytearray(_STRETCH_BYTES + 15))  # 15 bytes for `Keystream.write`
        self._keystream = np.frombuffer(self._buffer[:_STRETCH_BYTES], lane)

    def add_to(self, lanes: Lanes) -> None:
        """Add the masks' next elements to `lanes` in place.

        The number of elements must fill whole blocks of the keystreams, except in the last call.
        """
        # Each stretch gets all masks before the next one, so the vector is read from memory once.
        at_once = len(self._keystream)
        for begin in range(0, len(lanes), at_once):
            stretch = lanes[begin : begin + at_once]
            size = stretch.nbytes
            target, mask = self._buffer[: size + 15], self._keystream[: len(stretch)]
            for write, plus in self._ciphers:
                write(target, size)
                (np.add if plus else np.subtract)(stretch, mask, out=stretch)

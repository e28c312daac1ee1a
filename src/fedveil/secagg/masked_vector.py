"""Masks a client's vector and packs it, part by part, so that no further copy of it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedveil.base import reused_memory
from fedveil.base.array_types import Signed, Uint8s, Uint64s, parts
from fedveil.base.packing import pack_into, packed_size
from fedveil.base.two_threads import by_halves
from fedveil.secagg.masking import Masks, Ring

#: After this many entries, the packed numbers and each mask's keystream are at a whole word.
_GROUP = 64


@dataclass(frozen=True)
class MadeInParts:
    """A vector of `length` whole numbers, of which only one part is in memory at a time.

    `numbers(some)` makes the entries in the slice `some`. It yields an array for each slice of
    `parts(some.stop, some.start)`, which is valid until the next one is requested. Two threads may
    make two slices at the same time.
    """

    length: int
    numbers: Callable[[slice], Iterator[Signed]]

    @property
    def shape(self) -> tuple[int]:
        return (self.length,)


Vector: TypeAlias = Signed | MadeInParts


def masked(vector: Vector, ring: Ring, seeds: Sequence[tuple[bytes, bool]]) -> Uint8s:
    """Return the vector plus the masks of the seeds, modulo 2^bits, as packed numbers.

    `seeds` has pairs of a seed and a flag. The mask is subtracted if the flag is False. If `vector`
    is an array, the result may overwrite it.
    """
    count, width = vector.shape[0], ring.bits
    words, spacing = _memory(vector, ring)

    def work(some: slice) -> slice:
        masks, place = Masks(seeds, ring.lane, some.start), some.start // _GROUP * spacing
        for numbers in _numbers(vector, some):
            lanes = ring.elements(numbers)
            masks.add_to(lanes)
            pack_into(words[place:], lanes, 0, width)
            place += len(lanes) // _GROUP * width
        return some

    for some in by_halves(count, work, _GROUP):
        _close_gap(words, some, spacing, width)
    return words.view(np.uint8)[: packed_size(count, width)]


def _numbers(vector: Vector, some: slice) -> Iterator[Signed]:
    if isinstance(vector, MadeInParts):
        return vector.numbers(some)
    return (vector[part] for part in parts(some.stop, some.start))


def _memory(vector: Vector, ring: Ring) -> tuple[Uint64s, int]:
    """Return memory for the packed numbers, and the number of its words for each 64 entries.

    This is the memory of `vector` itself, if its entries are as long as lanes and longer than the
    packed numbers. Each slice is then packed at the slice's own beginning.
    """
    count, width, lane = vector.shape[0], ring.bits, ring.lane.itemsize
    spare = count * (8 * lane - width)  # bits: in each half, enough to fill up the last word
    array = None if isinstance(vector, MadeInParts) or not vector.flags.carray else vector
    if array is not None and array.itemsize == lane and spare >= 2 * _GROUP:
        return array.view(np.uint8)[: array.nbytes // 8 * 8].view("<u8"), 8 * lane
    return reused_memory.empty(-(-count * width // 64), "<u8"), width


def _close_gap(words: Uint64s, some: slice, spacing: int, width: int) -> None:
    """Move the packed numbers of the slice `some` down, to those of the slice before it."""
    packed = -(-(some.stop - some.start) * width // 64)
    found, wanted = some.start // _GROUP * spacing, some.start // _GROUP * width
    if found != wanted:
        words[wanted : wanted + packed] = words[found : found + packed]

"""Ring elements packed on the wire: `bits` bits each, the lowest bit first, no gaps."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil._kernels import compiled
from fedveil.secagg.masking import Lanes, Ring

Bytes: TypeAlias = npt.NDArray[np.uint8]

# A multiple of 8, so that every part but the last begins and ends with a byte.
_PART = 1 << 14


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` elements take; the last byte's spare bits are zero."""
    return (count * bits + 7) // 8


def pack(lanes: Lanes, ring: Ring) -> Bytes:
    """The elements of a reduced vector of lanes, packed."""
    words = np.zeros((len(lanes) * ring.bits + 63) // 64, "<u8")
    _pack(lanes, ring.bits, words)
    return words.view(np.uint8)[: packed_size(len(lanes), ring.bits)]


def add_packed(packed: Bytes, ring: Ring, total: Lanes) -> None:
    """Add the elements of `packed`, as many as there are, to a vector of lanes."""
    padded = np.zeros(len(packed) // 8 * 8 + 16, np.uint8)  # two whole words are read at a time
    padded[: len(packed)] = packed
    _add_packed(padded.view("<u8"), ring.bits, total)


def spare_bits_zero(packed: Bytes, count: int, bits: int) -> bool:
    """Whether nothing is hidden behind the last of `count` elements."""
    spare = 8 * len(packed) - count * bits
    return not spare or int(packed[-1]) >> (8 - spare) == 0


def _pack_numpy(lanes: Lanes, bits: int, words: npt.NDArray[np.uint64]) -> None:
    target = words.view(np.uint8)
    for start in range(0, len(lanes), _PART):
        part = lanes[start : start + _PART]
        rows = part.view(np.uint8).reshape(len(part), part.itemsize)
        digits = np.unpackbits(rows, axis=1, count=bits, bitorder="little")
        packed = np.packbits(digits.reshape(-1), bitorder="little")
        begin = start * bits // 8
        target[begin : begin + len(packed)] = packed


@compiled(_pack_numpy)
def _pack(lanes: Lanes, bits: int, words: npt.NDArray[np.uint64]) -> None:
    held = np.uint64(0)
    used = word = 0
    for i in range(len(lanes)):
        value = np.uint64(lanes[i])
        held |= value << np.uint64(used)
        used += bits
        if used >= 64:
            words[word] = held
            word += 1
            used -= 64
            held = value >> np.uint64(bits - used) if used else np.uint64(0)
    if used:
        words[word] = held


def _add_packed_numpy(words: npt.NDArray[np.uint64], bits: int, total: Lanes) -> None:
    source = words.view(np.uint8)
    for start in range(0, len(total), _PART):
        part = total[start : start + _PART]
        begin = start * bits // 8
        end = begin + packed_size(len(part), bits)
        digits = np.unpackbits(source[begin:end], count=len(part) * bits, bitorder="little")
        columns = np.packbits(digits.reshape(-1, bits), axis=1, bitorder="little")
        rows = np.zeros((len(part), part.itemsize), np.uint8)
        rows[:, : columns.shape[1]] = columns
        part += rows.view(part.dtype).reshape(-1)


@compiled(_add_packed_numpy)
def _add_packed(words: npt.NDArray[np.uint64], bits: int, total: Lanes) -> None:
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - bits)
    for i in range(len(total)):
        at = np.uint64(i) * np.uint64(bits)
        word, shift = at >> np.uint64(6), at & np.uint64(63)
        # In two steps, because a shift by 64 is none.
        above = (words[word + np.uint64(1)] << np.uint64(1)) << (np.uint64(63) - shift)
        element = ((words[word] >> shift) | above) & mask
        total[i] += total.dtype.type(element)

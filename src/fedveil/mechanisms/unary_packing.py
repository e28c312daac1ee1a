"""Whole numbers of a fixed width, packed bit by bit: the lowest bit first, no gaps.

Widths are 1 to 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil._kernels import compiled

_Bytes = npt.NDArray[np.uint8]
_Signed = npt.NDArray[np.signedinteger[Any]]


def packed_size(count: int, width: int) -> int:
    """Bytes that `count` numbers of `width` bits take; the last byte's spare bits are zero."""
    return (count * width + 7) // 8


def pack(values: _Signed, lowest: int, width: int) -> _Bytes:
    """`value - lowest` for every value, each in `width` bits."""
    words = np.zeros((len(values) * width + 63) // 64, np.uint64)
    _pack(values, lowest, width, words)
    return words.view(np.uint8)[: packed_size(len(values), width)]


def unpack(packed: _Bytes, lowest: int, highest: int, width: int, out: _Signed) -> bool:
    """Overwrite `out` with the numbers of `packed`, the inverse of `pack`.

    Returns whether `packed` is one that `pack` can have made of numbers in lowest..highest: the
    right length, all of them in that range, spare bits zero. Otherwise `out` is meaningless.
    """
    if len(packed) != packed_size(len(out), width):
        return False
    spare = 8 * len(packed) - len(out) * width
    if spare and packed[-1] >> (8 - spare):
        return False
    padded = np.zeros(len(packed) + 8, np.uint8)  # a number is read from eight bytes
    padded[: len(packed)] = packed
    return bool(_unpack(padded, lowest, width, out) <= highest - lowest)


def _pack_numpy(values: _Signed, lowest: int, width: int, words: npt.NDArray[np.uint64]) -> None:
    numbers = (values.astype(np.int64) - lowest).astype("<u4").view(np.uint8).reshape(-1, 4)
    bits = np.unpackbits(numbers, axis=1, count=width, bitorder="little")
    packed = np.packbits(bits.reshape(-1), bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed


@compiled(_pack_numpy)
def _pack(values: _Signed, lowest: int, width: int, words: npt.NDArray[np.uint64]) -> None:
    held = np.uint64(0)
    bits = word = 0
    for i in range(len(values)):
        value = np.uint64(np.int64(values[i]) - lowest)
        held |= value << np.uint64(bits)
        bits += width
        if bits >= 64:
            words[word] = held
            word += 1
            bits -= 64
            held = value >> np.uint64(width - bits) if bits else np.uint64(0)
    if bits:
        words[word] = held


def _unpack_numpy(padded: _Bytes, lowest: int, width: int, out: _Signed) -> int:
    bits = np.unpackbits(padded, count=len(out) * width, bitorder="little")
    columns = np.packbits(bits.reshape(-1, width), axis=1, bitorder="little")
    numbers = np.zeros((len(out), 4), np.uint8)
    numbers[:, : columns.shape[1]] = columns
    values = numbers.view("<u4").reshape(-1).astype(np.int64)
    out[:] = values + lowest
    return int(values.max(initial=0))


@compiled(_unpack_numpy)
def _unpack(padded: _Bytes, lowest: int, width: int, out: _Signed) -> int:
    """Overwrite `out`; returns the largest number before `lowest` was added."""
    mask = np.uint64((1 << width) - 1)
    largest = np.uint64(0)
    for i in range(len(out)):
        at = np.uint64(i) * np.uint64(width)
        byte = at >> np.uint64(3)
        eight = np.uint64(0)
        for k in range(8):  # one load, for a compiler
            eight |= np.uint64(padded[byte + np.uint64(k)]) << np.uint64(8 * k)
        number = (eight >> (at & np.uint64(7))) & mask
        largest = max(largest, number)
        out[i] = np.int64(number) + lowest
    return int(largest)

"""Packs integers of equal bit width without gaps, lowest bit first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base import reused_memory
from fedveil.base.array_types import Int64s, Uint8s, Uint64s, parts
from fedveil.base.kernels import compiled

_Whole = npt.NDArray[np.integer[Any]]

# A multiple of 8, so that every part but the last starts and ends at a byte boundary.
_PART = 1 << 14
_STRETCH = 1 << 16
#: Size of the block that stays in the cache between two loops; a multiple of 8.
_SOME = 1 << 11


def packed_size(count: int, width: int) -> int:
    """Return the number of bytes that `count` numbers of `width` bits take when they are packed."""
    return (count * width + 7) // 8


def spare_bits_zero(packed: Uint8s, count: int, width: int) -> bool:
    """Return True if the bits of `packed` after `count` numbers of `width` bits are zero."""
    spare = 8 * len(packed) - count * width
    return not spare or int(packed[-1]) >> (8 - spare) == 0


def pack(values: _Whole, lowest: int, width: int) -> Uint8s:
    """Subtract `lowest` from each value, and pack the low `width` (1 to 64) bits of each result."""
    return pack_parts(len(values), lowest, width, lambda part: values[part])


def pack_parts(count: int, lowest: int, width: int, make: Callable[[slice], _Whole]) -> Uint8s:
    """Subtract `lowest` from each of `count` numbers, and pack the low `width` bits of each result.

    `make` returns the numbers of one slice. It is called for one slice after another.
    """
    words = reused_memory.empty((count * width + 63) // 64, "<u8")
    for part in parts(count):
        pack_into(words[part.start // 64 * width :], make(part), lowest, width)
    return words.view(np.uint8)[: packed_size(count, width)]


def join_parts(count: int, make: Callable[[slice], Int64s]) -> Int64s:
    """Return `count` numbers, computed in parts. `make` returns the numbers of one slice."""
    out = reused_memory.empty(count, np.int64)
    for part in parts(count):
        out[part] = make(part)
    return out


def unpack(packed: Uint8s, lowest: int, highest: int, width: int, out: _Whole) -> bool:
    """Unpack numbers of `width` bits (1 to 32) into `out`. The inverse of `pack`.

    Returns True if `packed` has the right length, all numbers are in `lowest`..`highest`, and the
    unused bits are zero. Otherwise returns False, and `out` is meaningless.
    """
    if len(packed) != packed_size(len(out), width) or not spare_bits_zero(packed, len(out), width):
        return False
    for part, padded in _padded_parts(packed, width, out):
        if _unpack(padded, lowest, width, part) > highest - lowest:
            return False
    return True


def add_within(packed: Uint8s, lowest: int, highest: int, width: int, total: _Whole) -> bool:
    """Unpack numbers of `width` bits, and add them to `total`, entry by entry.

    The numbers must fit int32. Returns True if `packed` has the right length, all numbers are in
    lowest..highest, and the unused bits are zero. Otherwise returns False and adds nothing.
    """
    if len(packed) != packed_size(len(total), width):
        return False
    if not spare_bits_zero(packed, len(total), width):
        return False
    return bool(_add_within(packed, lowest, highest, width, total))


def add(numbers: _Whole, total: _Whole) -> None:
    _add(numbers, total)


def add_packed(packed: Uint8s, width: int, total: _Whole) -> None:
    """Add packed numbers of `width` bits (1 to 64) to `total`, entry by entry."""
    for part, padded in _padded_parts(packed, width, total):
        _add_packed(padded.view("<u8"), width, part)


def _padded_parts(packed: Uint8s, width: int, out: _Whole) -> Iterator[tuple[_Whole, Uint8s]]:
    """Yield pairs of a slice of `out` and the bytes of the packed numbers for this slice.

    A number has `width` bits. The bytes of a slice are followed by padding, which callers ignore.
    """
    size = packed_size(min(len(out), _STRETCH), width)
    padded = np.zeros(size // 8 * 8 + 16, np.uint8)
    for start in range(0, len(out), _STRETCH):
        part = out[start : start + _STRETCH]
        begin = start * width // 8
        size = packed_size(len(part), width)
        padded[:size] = packed[begin : begin + size]
        yield part, padded


def _pack_numpy(words: Uint64s, values: _Whole, lowest: int, width: int) -> None:
    target = words.view(np.uint8)
    for start in range(0, len(values), _PART):
        part = values[start : start + _PART].astype(np.int64) - lowest
        digits = np.unpackbits(
            part.astype("<i8").view(np.uint8).reshape(len(part), 8),
            axis=1,
            count=width,
            bitorder="little",
        )
        packed = np.packbits(digits.reshape(-1), bitorder="little")
        begin = start * width // 8
        target[begin : begin + len(packed)] = packed


@compiled(_pack_numpy)
def pack_into(words: Uint64s, values: _Whole, lowest: int, width: int) -> None:
    """Write what `pack` returns for `values` to the beginning of `words`."""
    held, mask = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - width)
    bits = word = 0
    for i in range(len(values)):
        value = np.uint64(np.int64(values[i]) - lowest) & mask
        held |= value << np.uint64(bits)
        bits += width
        if bits >= 64:
            words[word] = held
            word += 1
            bits -= 64
            held = value >> np.uint64(width - bits) if bits else np.uint64(0)
    if bits:
        words[word] = held


def _unpack_numpy(padded: Uint8s, lowest: int, width: int, out: _Whole) -> int:
    bits = np.unpackbits(padded, count=len(out) * width, bitorder="little")
    columns = np.packbits(bits.reshape(-1, width), axis=1, bitorder="little")
    numbers = np.zeros((len(out), 4), np.uint8)
    numbers[:, : columns.shape[1]] = columns
    values = numbers.view("<u4").reshape(-1).astype(np.int64)
    out[:] = values + lowest
    return int(values.max(initial=0))


@compiled(_unpack_numpy)
def _unpack(padded: Uint8s, lowest: int, width: int, out: _Whole) -> int:
    """Set `out` to the packed numbers, each plus `lowest`. Returns the largest number as packed.

    A packed number has `width` bits. `padded` has the bytes of the numbers, followed by at least 8
    further bytes.
    """
    mask, largest = np.uint64((1 << width) - 1), np.uint64(0)
    eights = len(out) // 8 * 8
    for i in range(0, eights, 8):  # eight numbers start at a byte: the shifts are constant
        for k in range(8):
            number = _number(padded, i // 8 * width, k * width) & mask
            largest = max(largest, number)
            out[i + k] = np.int64(number) + lowest
    for i in range(eights, len(out)):
        number = _number(padded, 0, i * width) & mask
        largest = max(largest, number)
        out[i] = np.int64(number) + lowest
    return int(largest)


@compiled()
def _number(padded: Uint8s, byte: int, bit: int) -> np.uint64:
    """Return the 64-bit number that begins at bit `bit` of byte `byte` of `padded`.

    This bit is the lowest of the number. Bit 0 is the lowest bit of a byte, and bit 8 is the lowest
    of the next byte. The low 57 bits of the result are always bits of `padded`. Higher ones may be
    0 instead.
    """
    first = np.uint64(byte + (bit >> 3))
    eight = np.uint64(0)
    for k in range(8):  # a compiler turns this into one load
        eight |= np.uint64(padded[first + np.uint64(k)]) << np.uint64(8 * k)
    return eight >> np.uint64(bit & 7)


def _add_within_numpy(packed: Uint8s, lowest: int, highest: int, width: int, total: _Whole) -> bool:
    numbers = np.empty(len(total), np.int64)
    if _unpack_numpy(packed, lowest, width, numbers) > highest - lowest:
        return False
    total += numbers
    return True


@compiled(_add_within_numpy)
def _add_within(packed: Uint8s, lowest: int, highest: int, width: int, total: _Whole) -> bool:
    """Add the packed numbers of `width` bits, each plus `lowest`, to `total`.

    If a packed number plus `lowest` is above `highest`, returns False and adds nothing. Otherwise
    returns True.
    """
    padded, numbers = np.zeros(_SOME // 8 * width + 8, np.uint8), np.empty(_SOME, np.int32)
    for start in range(0, len(total), _SOME):
        part = numbers[: len(total[start : start + _SOME])]
        if _some(packed, start, lowest, width, padded, part) > highest - lowest:
            for before in range(0, start, _SOME):
                _some(packed, before, lowest, width, padded, numbers)
                _add(-numbers, total[before : before + _SOME])
            return False
        _add(part, total[start : start + _SOME])
    return True


@compiled()
def _some(packed: Uint8s, start: int, lowest: int, width: int, padded: Uint8s, out: _Whole) -> int:
    source = packed[start // 8 * width :][: (len(out) * width + 7) // 8]
    for k in range(len(source)):
        padded[k] = source[k]
    return _unpack(padded, lowest, width, out)


def _add_numpy(numbers: _Whole, total: _Whole) -> None:
    total += numbers


@compiled(_add_numpy)
def _add(numbers: _Whole, total: _Whole) -> None:
    for i in range(len(total)):
        total[i] += numbers[i]


def _add_packed_numpy(words: Uint64s, width: int, total: _Whole) -> None:
    source = words.view(np.uint8)
    for start in range(0, len(total), _PART):
        part = total[start : start + _PART]
        begin = start * width // 8
        end = begin + packed_size(len(part), width)
        digits = np.unpackbits(source[begin:end], count=len(part) * width, bitorder="little")
        columns = np.packbits(digits.reshape(-1, width), axis=1, bitorder="little")
        rows = np.zeros((len(part), part.itemsize), np.uint8)
        rows[:, : columns.shape[1]] = columns
        part += rows.view(part.dtype).reshape(-1)


@compiled(_add_packed_numpy)
def _add_packed(words: Uint64s, width: int, total: _Whole) -> None:
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - width)
    for i in range(len(total)):
        at = np.uint64(i) * np.uint64(width)
        word, shift = at >> np.uint64(6), at & np.uint64(63)
        # Two steps, because a shift by 64 does nothing.
        above = (words[word + np.uint64(1)] << np.uint64(1)) << (np.uint64(63) - shift)
        element = ((words[word] >> shift) | above) & mask
        total[i] += total.dtype.type(element)

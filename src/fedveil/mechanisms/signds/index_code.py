"""A code for sets of whole numbers that is only a few percent longer than their entropy.

A set of h of the numbers 0..d-1 has an entropy of log2 C(d, h) bits. Each number is split into its
lowest bits, which are sent unchanged, and the number of its bucket. The buckets become a row of
bits, called marks: a 1 for each member, and a 0 for each step to the next bucket. An arithmetic
coder writes the marks with their exact probabilities.

    code := lowest bits of all members, in order, zero bits up to a whole byte
            arithmetic code of the marks, without zero bytes at its end

Every set has exactly one code, and other bytes are refused. d and h are not in the code, because
both sides know them. The code has at most 1.1 log2 C(d, h) / 8 + 4 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Int64s, Uint8s
from fedveil.base.kernels import compiled
from fedveil.base.validate import integer
from fedveil.errors import InvalidValue, MessageInvalid

_BUCKETS_PER_MEMBER = 8
_MAX_MARKS = (1 << 31) - 1
# The arithmetic coder's interval [low, low + range) in units that shrink by bytes.
_WINDOW = 0xFFFFFFFF
_RENORMALISE = 1 << 24


def encode_indices(indices: npt.ArrayLike, dim: int) -> bytes:
    """Encode `indices`, a set of numbers in 0..dim-1 in ascending order, as bytes.

    Raises `InvalidValue` if it is no such set.
    """
    members = np.asarray(indices)
    dim = integer("dim", dim, 1)
    if members.ndim != 1 or members.dtype.kind not in "iu":
        raise InvalidValue("indices is not a vector of whole numbers")
    members = members.astype(np.int64)
    if not _is_set(members, dim):
        raise InvalidValue(f"indices is not an ascending set of numbers in [0, {dim - 1}]")
    low_bits, marks = _layout(dim, len(members))
    places = members >> low_bits
    if low_bits:
        places += np.arange(len(members))
    row = np.empty(marks // 4 + 64, np.uint8)  # more than the coder can fill
    size = _write_marks(places, marks, row)
    return _pack_low(members, low_bits) + row[:size].tobytes().rstrip(b"\0")


def longest_code(dim: int, count: int) -> int:
    """Return an upper bound on the number of bytes that encode `count` numbers in 0..dim-1."""
    low_bits, marks = _layout(dim, count)
    return _low_size(low_bits, count) + marks // 4 + 64


def decode_indices(code: bytes, dim: int, count: int) -> Int64s:
    """Decode an untrusted `code` to `count` numbers in 0..dim-1, in ascending order.

    Raises `MessageInvalid` if the bytes are not the code of such a set. Time and memory depend only
    on `dim` and `count`.
    """
    dim = integer("dim", dim, 1)
    count = integer("count", count, 0, dim)
    low_bits, marks = _layout(dim, count)
    split = _low_size(low_bits, count)
    if not split <= len(code) <= longest_code(dim, count):
        raise MessageInvalid("a set's code has an impossible length")
    places = np.empty(count, np.int64)
    _read_marks(np.frombuffer(code, np.uint8, offset=split), marks, places)
    if low_bits:
        places -= np.arange(count)
    members = (places << low_bits) | _unpack_low(code[:split], low_bits, count)
    if not _is_set(members, dim) or encode_indices(members, dim) != code:
        raise MessageInvalid("bytes are not the code of a set")
    return members


def _is_set(members: Int64s, dim: int) -> bool:
    inside = not len(members) or (members[0] >= 0 and members[-1] < dim)
    return bool(inside and (np.diff(members) > 0).all())


def _layout(dim: int, count: int) -> tuple[int, int]:
    low_bits = max(0, (dim // max(1, _BUCKETS_PER_MEMBER * count)).bit_length() - 1)
    marks = dim if low_bits == 0 else ((dim - 1) >> low_bits) + count
    if marks > _MAX_MARKS:
        raise InvalidValue(f"a set of {count} of {dim} numbers is too large for this code")
    return low_bits, marks


def _low_size(low_bits: int, count: int) -> int:
    return -(-low_bits * count // 8)


def _pack_low(members: Int64s, low_bits: int) -> bytes:
    bits = (members[:, None] >> np.arange(low_bits)) & 1
    return np.packbits(bits.astype(np.bool_)).tobytes()


def _unpack_low(data: bytes, low_bits: int, count: int) -> Int64s:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=low_bits * count)
    return bits.reshape(count, low_bits).astype(np.int64) @ (1 << np.arange(low_bits))


@compiled()
def _carry(out: Uint8s, size: int) -> None:
    at = size - 1
    while out[at] == 0xFF:
        out[at] = 0
        at -= 1
    out[at] += 1


def _write(places: Any, marks: int, out: Uint8s) -> int:
    """Write the arithmetic code of a row of bits to `out`. Returns the number of bytes written.

    The row has `marks` bits. Those at the indices `places` are 1.
    """
    low, width, size = 0, _WINDOW, 0
    left, place = len(places), 0
    for mark in range(marks):
        if left == 0 or left == marks - mark:
            break
        split = max(1, width * left // (marks - mark))
        if places[place] == mark:
            width = split
            place += 1
            left -= 1
        else:
            width -= split
            low += split
            if low > _WINDOW:
                low &= _WINDOW
                _carry(out, size)
        while width < _RENORMALISE:
            out[size] = low >> 24
            size += 1
            low = (low << 8) & _WINDOW
            width <<= 8
    last = (low + _RENORMALISE - 1) >> 24  # the least that one byte encodes
    if last > 0xFF:
        _carry(out, size)
    out[size] = last & 0xFF
    return size + 1


def _read(code: Any, marks: int, places: Int64s) -> None:
    value, width, at = 0, _WINDOW, 4
    for i in range(4):
        value = value << 8 | (code[i] if i < len(code) else 0)
    left, place = len(places), 0
    for mark in range(marks):
        if left == 0:
            break
        certain = left == marks - mark
        split = width if certain else max(1, width * left // (marks - mark))
        if certain or value < split:
            width = split
            places[place] = mark
            place += 1
            left -= 1
        else:
            width -= split
            value -= split
        while width < _RENORMALISE:
            value = (value << 8 | (code[at] if at < len(code) else 0)) & _WINDOW
            at += 1
            width <<= 8


# Plain Python is fastest on lists.
_write_marks = compiled(lambda places, marks, out: _write(places.tolist(), marks, out))(_write)
_read_marks = compiled(lambda code, marks, places: _read(code.tolist(), marks, places))(_read)

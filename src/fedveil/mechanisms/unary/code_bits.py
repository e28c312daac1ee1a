"""Perturbed one-hot codes, packed as bits.

Every parameter has a state, its value rounded to a whole number from -cells to cells. The setting
`cells` decides how finely values are rounded. A code has 2 cells + 1 bits, one for each possible
state: bit k stands for the state k - cells. Before the code is perturbed, only the bit of the
parameter's own state is 1.

There are no gaps between the codes. A byte's lowest bit comes first. A single 1 follows the last
code, and zeros fill the last byte. So the bytes determine the number of bits, and codes can be
packed in only one way.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Uint8s, Uint64s
from fedveil.base.kernels import compiled
from fedveil.entropy import Entropy
from fedveil.mechanisms.exact.biased_bits import byte_tables
from fedveil.mechanisms.unary.rounding import States


def draw_codes(p: Fraction, q: Fraction, cells: int, states: States, entropy: Entropy) -> Uint8s:
    """Return the perturbed one-hot codes of parameters in the given `states`, packed as bits.

    A state is a whole number from -cells to cells. The bit of a parameter's own state is 1 with
    probability p, any other bit with probability q, independently.
    """
    count = len(states) * (2 * cells + 1)
    packed = np.empty(packed_codes_size(count), np.uint8)
    byte_tables(q).draw_from(0, entropy, packed)
    own = np.empty((len(states) + 7) // 8, np.uint8)
    byte_tables(p).draw_from(0, entropy, own)
    _put(packed, states, own, cells)
    last, spare = divmod(count, 8)
    packed[last] = (packed[last] & ((1 << spare) - 1)) | (1 << spare)
    return packed


def packed_codes_size(bits: int) -> int:
    """Return the number of bytes that hold codes of `bits` bits in total, and an end mark."""
    return bits // 8 + 1


def code_count(packed: Uint8s, cells: int) -> int | None:
    """Return the number of codes of 2 cells + 1 bits in `packed`, or None for invalid bytes."""
    if len(packed) == 0 or packed[-1] == 0:
        return None
    bits = 8 * len(packed) - 9 + int(packed[-1]).bit_length()
    count, rest = divmod(bits, 2 * cells + 1)
    return count if rest == 0 else None


def fold_codes(packed: Uint8s, cells: int, sums: npt.NDArray[np.signedinteger[Any]]) -> None:
    """Add to each `sums[i]` the sum of the states whose bits are 1 in code i of `packed`.

    Bit k of a code stands for the state k - `cells`.
    """
    words = np.zeros(len(packed) // 8 + 2, np.uint64)
    words.view(np.uint8)[: len(packed)] = packed
    _fold(words, cells, sums)


def unpack_codes(packed: Uint8s, cells: int, count: int) -> Uint8s:
    """Return the bits of `count` packed codes as zeros and ones, with one code per row.

    A code has a bit for each state, from -`cells` to `cells`.
    """
    states = 2 * cells + 1
    bits = np.unpackbits(packed, count=count * states, bitorder="little")
    return bits.reshape(count, states)


def _put_numpy(packed: Uint8s, states: States, own: Uint8s, cells: int) -> None:
    places = np.arange(len(states)) * (2 * cells + 1) + (states.astype(np.int64) + cells)
    bits = np.unpackbits(packed, bitorder="little")
    bits[places] = np.unpackbits(own, count=len(states), bitorder="little")
    packed[:] = np.packbits(bits, bitorder="little")


@compiled(_put_numpy)
def _put(packed: Uint8s, states: States, own: Uint8s, cells: int) -> None:
    """Overwrite one bit in the packed code of each parameter: the bit of the parameter's own state.

    Parameter i is in the state states[i], a whole number from -`cells` to `cells`. In its code, bit
    `cells` + states[i] stands for this state. The function sets this bit to bit i of `own`.
    """
    for i in range(len(states)):
        place = i * (2 * cells + 1) + cells + states[i]
        bit = (own[i >> 3] >> (i & 7)) & 1
        byte, shift = place >> 3, place & 7
        packed[byte] = (packed[byte] & ~(1 << shift)) | (bit << shift)


#: Number of codes that the NumPy path unpacks at a time.
_UNPACKED_AT_ONCE = 1 << 13


def _fold_numpy(words: Uint64s, cells: int, sums: npt.NDArray[np.signedinteger[Any]]) -> None:
    packed = words.view(np.uint8)
    values = np.arange(-cells, cells + 1, dtype=np.float64)  # whole and small: the sums are exact
    for begin in range(0, len(sums), _UNPACKED_AT_ONCE):
        part = sums[begin : begin + _UNPACKED_AT_ONCE]
        first = begin * len(values) // 8
        codes = unpack_codes(packed[first:], cells, len(part))
        part += (codes @ values).astype(sums.dtype)


@compiled(_fold_numpy)
def _fold(words: Uint64s, cells: int, sums: npt.NDArray[np.signedinteger[Any]]) -> None:
    states = 2 * cells + 1
    for i in range(len(sums)):
        total = 0
        for k in range(0, states, 64):
            at = i * states + k
            shift = np.uint64(at & 63)
            after = words[(at >> 6) + 1] << np.uint64(1) << (np.uint64(63) - shift)
            word = (words[at >> 6] >> shift) | after
            if states - k < 64:
                word &= (np.uint64(1) << np.uint64(states - k)) - np.uint64(1)
            # Σ k * bit k: count the set bits whose number has binary digit j, times 2^j.
            total += (k - cells) * _ones(word)
            total += _ones(word & np.uint64(0xAAAAAAAAAAAAAAAA))
            total += _ones(word & np.uint64(0xCCCCCCCCCCCCCCCC)) << 1
            total += _ones(word & np.uint64(0xF0F0F0F0F0F0F0F0)) << 2
            total += _ones(word & np.uint64(0xFF00FF00FF00FF00)) << 3
            total += _ones(word & np.uint64(0xFFFF0000FFFF0000)) << 4
            total += _ones(word & np.uint64(0xFFFFFFFF00000000)) << 5
        sums[i] += total


@compiled()
def _ones(word: np.uint64) -> int:
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))

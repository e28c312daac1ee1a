"""A random rotation, which spreads the norm of each block of a vector over the block's entries.

    R x = H S x / √B

for each block x of B entries. B is a power of two, H is the B x B Walsh-Hadamard matrix, and S =
diag(signs) has random signs. R is orthogonal. With uniform signs, an entry of R x exceeds t · |x| /
√B in magnitude with probability at most 2 exp(-t² / 2), for every block x (Hoeffding).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedveil.base import reused_memory
from fedveil.base.array_types import Array, Int8s, parts
from fedveil.base.kernels import compiled
from fedveil.base.two_threads import by_halves
from fedveil.entropy import Entropy

Floats = npt.NDArray[np.floating]

#: Entries of a stretch and of a part: few enough to stay in a core's own cache.
_STRETCH, _PART = 1 << 12, 1 << 16
_MOST_COLUMNS = 1 << 9
#: Up to this many entries, NumPy undoes the rotation fast enough. Compiling the loop for float64
#: takes a second.
_FEW = 1 << 13


def padded_length(dimension: int) -> int:
    """Return the smallest power of two that is at least `dimension`."""
    return 1 << max(0, dimension - 1).bit_length()


def random_signs(length: int, entropy: Entropy) -> Int8s:
    """Return `length` independent signs, 1 or -1, each with probability 1/2."""
    words = np.empty(-(-length // 8), np.uint8)
    entropy.fill(words)
    signs = reused_memory.empty(length, np.int8)
    for part in parts(length):
        bits = words[part.start // 8 : -(-part.stop // 8)]
        out = signs[part]
        out[:] = np.unpackbits(bits, count=len(out), bitorder="little")
        out *= -2
        out += 1
    return signs


def rotate(vector: Array, signs: Int8s, block: int) -> Floats:
    """Return the rotated vector in the float type of `vector`. `unrotate` undoes the rotation.

    The vector is padded with zeros to the number of `signs`, which must be a multiple of `block`.
    Its entries are multiplied by the signs, and then each block of `block` entries by the
    Walsh-Hadamard matrix / √block.
    """
    out = np.zeros(len(signs), vector.dtype)
    np.multiply(vector, signs[: len(vector)], out=out[: len(vector)])
    walsh_hadamard(out, block)
    out *= out.dtype.type(block**-0.5)
    return out


def unrotate(rotated: Floats, signs: Int8s, block: int) -> None:
    """Undo `rotate` with the same `signs` and `block`, in place. The padding is not removed."""
    turn = _walsh_hadamard_numpy if len(rotated) <= _FEW else walsh_hadamard
    size = max(block, _PART)

    def undo(some: slice) -> None:
        for start in range(some.start, some.stop, size):
            each = slice(start, min(start + size, some.stop))
            part = rotated[each]
            turn(part, block)
            part *= signs[each]
            part *= rotated.dtype.type(block**-0.5)

    by_halves(len(rotated), undo, block)


def walsh_hadamard(vector: Floats, block: int) -> None:
    """Multiply each block of `block` entries by the Walsh-Hadamard matrix, in place.

    `block` must be a power of two. The result is bit-identical on every machine.
    """
    _walsh_hadamard(vector, block)


def _walsh_hadamard_numpy(vector: Floats, block: int) -> None:
    half = 1
    while half < block:
        pairs = vector.reshape(-1, 2, half)
        low, high = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
        pairs[:, 0], pairs[:, 1] = low, high
        half *= 2


@compiled(_walsh_hadamard_numpy)
def _walsh_hadamard(vector: Floats, block: int) -> None:
    stretch = min(block, _STRETCH)
    for begin in range(0, len(vector), block):
        whole = vector[begin : begin + block]
        for start in range(0, block, stretch):
            part = whole[start : start + stretch]
            _levels(part, _first_levels(part))
        _levels(whole, stretch)


@compiled()
def _first_levels(part: Floats) -> int:
    if len(part) < 8:
        return 1
    for i in range(0, len(part), 8):
        a, b = part[i] + part[i + 1], part[i] - part[i + 1]
        c, d = part[i + 2] + part[i + 3], part[i + 2] - part[i + 3]
        e, f = part[i + 4] + part[i + 5], part[i + 4] - part[i + 5]
        g, h = part[i + 6] + part[i + 7], part[i + 6] - part[i + 7]
        a, c = a + c, a - c
        b, d = b + d, b - d
        e, g = e + g, e - g
        f, h = f + h, f - h
        part[i], part[i + 4] = a + e, a - e
        part[i + 1], part[i + 5] = b + f, b - f
        part[i + 2], part[i + 6] = c + g, c - g
        part[i + 3], part[i + 7] = d + h, d - h
    return 8


@compiled()
def _levels(part: Floats, half: int) -> None:
    while half < len(part):
        if 4 * half <= len(part):
            _two_levels(part, half)
            half *= 4
        else:
            _one_level(part, half)
            half *= 2


@compiled()
def _one_level(part: Floats, half: int) -> None:
    for start in range(0, len(part), 2 * half):
        low, high = part[start : start + half], part[start + half : start + 2 * half]
        for i in range(half):
            a, b = low[i], high[i]
            low[i], high[i] = a + b, a - b


@compiled()
def _two_levels(part: Floats, half: int) -> None:
    columns = min(half, _MOST_COLUMNS)
    for start in range(0, len(part), 4 * half):
        for left in range(start, start + half, columns):
            one = part[left : left + columns]
            two = part[left + half : left + half + columns]
            three = part[left + 2 * half : left + 2 * half + columns]
            four = part[left + 3 * half : left + 3 * half + columns]
            for i in range(columns):
                a, b = one[i] + two[i], one[i] - two[i]
                c, d = three[i] + four[i], three[i] - four[i]
                one[i], two[i] = a + c, b + d
                three[i], four[i] = a - c, b - d

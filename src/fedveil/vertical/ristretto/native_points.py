"""Many points of ristretto255 at once in native code, by the formulas of `point_formulas`."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array
from fedveil.vertical.ristretto import field_lanes as field
from fedveil.vertical.ristretto import point_formulas as formulas

Points = npt.NDArray[np.uint8]
_P = np.array([2**64 - 19, 2**64 - 1, 2**64 - 1, 2**63 - 1], np.uint64)
can_run = field.has_products


def raised(points: Points, scalar: bytes) -> Points | None:
    """Return the scalar's multiple of each point. None if one is invalid or the identity."""
    words, count = _padded(points), len(points)
    out, invalid = np.empty((len(words), 4), np.uint64), np.empty(len(words), np.uint64)
    formulas.raise_points(_memory(scalar), words, out, invalid)
    if invalid.any() or not _are_points(words[:count]) or not _are_points(out[:count]):
        return None
    return out.view(np.uint8)[:count]


def hashed(hashes: Points, scalar: bytes) -> Points:
    """Return the scalar's multiple of the point that each row of 64 bytes is mapped to."""
    words = _padded(hashes)
    out = np.empty((len(words), 4), np.uint64)
    formulas.raise_hashes(_memory(scalar), words, out)
    return out.view(np.uint8)[: len(hashes)]


def summed(weights: Points, points: Points) -> Points | None:
    """Return eight points whose sum is Σ d_i P_i. None if one is invalid or the identity."""
    words = _padded(points)
    digits = np.zeros((len(words), 2 * weights.shape[1]), np.uint8)
    digits[: len(weights), 0::2], digits[: len(weights), 1::2] = weights >> 4, weights & 15
    out, invalid = np.empty((field.LANES, 4), np.uint64), np.empty(len(words), np.uint64)
    formulas.sum_multiples(_memory(bytes(32)), words, digits, out, invalid)
    return None if invalid.any() or not _are_points(words[: len(points)]) else out.view(np.uint8)


def _padded(rows: Points) -> Array:
    """Return the rows as words of 64 bits, with rows of zeros after them: the identity."""
    padded = np.zeros((-(-len(rows) // field.LANES) * field.LANES, rows.shape[1]), np.uint8)
    padded[: len(rows)] = rows
    return padded.view("<u8")


def _are_points(words: Array) -> bool:
    """Return True if each row is an even number from 1 to p - 1, as a point's encoding is."""
    large = (words[:, 3] >= _P[3]) & (words[:, 1:3] == _P[1]).all(axis=1) & (words[:, 0] >= _P[0])
    large |= (words[:, 3] > _P[3]) | (words[:, 0] & np.uint64(1) > 0)
    return bool(words.any(axis=1).all()) and not large.any()


def _memory(scalar: bytes) -> Array:
    """Return the native code's memory, aligned to its vectors, with the scalar's masks."""
    words = formulas.MASKS + formulas.WINDOWS * field.ENTRIES
    memory = np.zeros(words + field.LANES, np.uint64)
    memory = memory[-memory.ctypes.data // 8 % field.LANES :][:words]
    memory[: len(_constants())] = _constants()
    digits = np.frombuffer(scalar, np.uint8)[::-1, None] >> np.array([4, 0], np.uint8) & 15
    masks = digits.reshape(-1, 1) == np.arange(field.ENTRIES, dtype=np.uint8)
    memory[formulas.MASKS :] = -masks.astype(np.int64).ravel().view(np.uint64)
    return memory


@cache
def _constants() -> Array:
    limbs = [
        [number >> field.BITS * limb & (1 << field.BITS) - 1] * field.LANES
        for number in formulas.CONSTANTS
        for limb in range(field.LIMBS)
    ]
    return np.array(limbs, np.uint64).ravel()

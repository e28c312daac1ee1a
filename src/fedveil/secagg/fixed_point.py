"""Encodes real vectors as whole numbers, so that their sum is exact.

An entry x is limited to [-clip, clip] and divided by the step clip / (2^(bits - 1) - 1). The result
is rounded at random to one of the two neighbouring whole numbers, with the unrounded result as the
expected value. Each probability is exact to 2^-30 if `bits` is at most 24, otherwise to 2^-22.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Array, Float64s, Int64s, Uint32s, into_floats
from fedveil.base.kernels import compiled
from fedveil.base.validate import finite_vector, integer, within
from fedveil.entropy import Entropy

MAX_ENTRY_BITS = 32
#: Range of `clip`: neither a step nor a sum of 2^32 vectors leaves the normal numbers.
_LEAST, _MOST = 2.0**-900, 2.0**900
#: Entries rounded at a time: few enough for a core's own cache.
_PART = 1 << 14


class FixedPoint:
    """Encodes reals in [-clip, clip] as whole numbers, whose sums are exact.

    The magnitude of a whole number is at most 2^(bits - 1) - 1.
    """

    def __init__(self, clip: float, bits: int) -> None:
        self.clip = within("clip", clip, _LEAST, _MOST)
        self.bits = integer("bits", bits, 2, MAX_ENTRY_BITS)
        self.largest = (1 << (self.bits - 1)) - 1
        self.step = self.clip / self.largest

    def clips(self, vector: Array) -> bool:
        """Return True if an entry of the vector is larger than `clip` in magnitude."""
        return bool(max(vector.max(initial=0.0), -vector.min(initial=0.0)) > self.clip)

    def quantise(self, vector: Array, entropy: Entropy, out: Int64s | None = None) -> Int64s:
        """Return the vector clipped, scaled and randomly rounded to whole numbers.

        `entropy` decides the rounding. If `out` is given, the result is written to it.
        """
        vector = finite_vector("vector", vector)
        if vector.dtype not in (np.float32, np.float64):  # float16, which numba lacks
            vector = vector.astype(np.float64)
        out = np.empty(len(vector), np.int64) if out is None else out
        words = np.empty(min(len(vector), _PART), np.uint32)
        for start in range(0, len(vector), _PART):
            part, rounded = vector[start : start + _PART], out[start : start + _PART]
            entropy.fill(words[: len(part)])
            _round(part, words[: len(part)], self.clip, self.largest, rounded)
        return out

    def restore(self, total: Int64s) -> Float64s:
        """Return the real vectors' sum, given the encoded vectors' `total`. Overwrites `total`."""
        real = into_floats(total)
        real *= self.step
        return real


def _round_numpy(part: Array, words: Uint32s, clip: float, largest: int, out: Int64s) -> None:
    scaled = np.clip(part.astype(np.float64), -clip, clip) * (largest / clip)
    below = np.floor(scaled)
    uniform = words * 2.0**-32
    rounded = below + (uniform < scaled - below)
    # clip * (largest / clip) may exceed largest by a rounding error.
    out[:] = np.clip(rounded, -largest, largest)


@compiled(_round_numpy)
def _round(part: Array, words: Uint32s, clip: float, largest: int, out: Int64s) -> None:
    """Write the entries of `part` to `out`: clipped, scaled, and rounded up or down at random.

    An entry is clipped to [-clip, clip] and multiplied by largest / clip. The probability of
    rounding up is the fractional part of the result. `words` has 32 random bits for each entry.
    """
    scale = largest / clip
    for i in range(len(part)):
        scaled = min(max(np.float64(part[i]), -clip), clip) * scale
        below = np.floor(scaled)
        uniform = np.float64(words[i]) * 2.0**-32
        rounded = below + np.float64(uniform < scaled - below)
        out[i] = np.int64(min(max(rounded, -np.float64(largest)), np.float64(largest)))

"""Scales a vector to units of a grid step, and rounds it to whole numbers, at random or not."""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Float32s, Int8s, Signed, Uint32s
from fedveil.base.kernels import compiled


def scale(vector: Float32s, factor: float, out: Float32s) -> None:
    """Write factor * vector, rounded to float32, to the first entries of `out`."""
    np.multiply(vector, factor, out=out[: len(vector)], dtype=np.float64, casting="same_kind")


def _scale_with_signs_numpy(vector: Float32s, factor: float, signs: Int8s, out: Float32s) -> None:
    scale(vector, factor, out)
    out[: len(vector)] *= signs


@compiled(_scale_with_signs_numpy)
def scale_with_signs(vector: Float32s, factor: float, signs: Int8s, out: Float32s) -> None:
    """Write factor * vector * signs, rounded to float32, to the first entries of `out`."""
    for i in range(len(vector)):
        out[i] = np.float32(np.float64(vector[i]) * factor) * np.float32(signs[i])


def _round_at_random_numpy(scaled: Float32s, uniform: Uint32s, out: Signed) -> int:
    below = np.floor(scaled)
    up = uniform[: len(scaled)] < (scaled - below).astype(np.float64) * 2.0**32
    numbers = below.astype(np.int64) + up
    out[:] = numbers
    return int(np.sum(numbers * numbers))


@compiled(_round_at_random_numpy)
def round_at_random(scaled: Float32s, uniform: Uint32s, out: Signed) -> int:
    """Round each entry of `scaled` up with a probability equal to its fraction, otherwise down.

    `uniform` has a random 32-bit word for each entry, so the probability is exact to 2^-32. Writes
    the results to `out`. Returns Σ out².
    """
    total = 0
    for i in range(len(scaled)):
        below = np.floor(scaled[i])
        number = int(below)
        if np.float64(uniform[i]) < np.float64(scaled[i] - below) * 4294967296.0:
            number += 1
        out[i] = number
        total += number * number
    return total


def round_towards_zero(scaled: Float32s, out: Signed) -> int:
    out[:] = np.trunc(scaled)
    return int(np.sum(np.square(out, dtype=np.int64)))

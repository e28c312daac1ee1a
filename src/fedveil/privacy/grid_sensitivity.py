"""The sensitivity of a sum of clipped contributions that is rounded to a grid.

Each example's contribution is clipped but not rounded. Only the sum is rounded. So a contribution
can move the rounded sum by a little more than its own norm. `moved` assumes exact sums. The clip of
`clip_within` also allows for the errors of sums in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float32s, Float64s, Int64s

#: A sum lies within this many steps of zero: a float32 represents these whole numbers.
LARGEST = 1 << 24
#: The most contributions that may be added up: see `clip_within`.
MOST = 1 << 18
#: A grid's step is at most the root mean square coordinate of a full contribution over this.
_STEPS_PER_COORDINATE = 128
#: Error of adding up in float64, at most, as a share of the clip.
_ADDING = 2.0**-13


def grid_step(clip: float, dimension: int) -> float:
    """Return the grid step of sums: the largest power of two up to clip / (128 sqrt(dimension))."""
    bound = clip / (_STEPS_PER_COORDINATE * math.sqrt(max(dimension, 1)))
    return math.ldexp(1.0, math.frexp(bound)[1] - 1)


def to_grid(vector: npt.NDArray[np.floating[Any]], step: float, limit: int = LARGEST) -> Int64s:
    """Return `vector` / `step`, rounded to whole numbers and limited to [-limit, limit].

    `step` must be a power of two, so that the division is exact.
    """
    steps = np.clip(vector.astype(np.float64) / step, -limit, limit)
    whole: Int64s = np.rint(steps).astype(np.int64)
    return whole


def moved(clip: float, step: float, dimension: int) -> float:
    """Return the largest distance by which adding a contribution moves a rounded sum.

    The contribution's norm is at most `clip`, and `step` is the distance between grid points. The
    sum has `dimension` entries. The result is clip + sqrt(dimension) * step. If a contribution is
    replaced, the sum moves by at most twice this distance.
    """
    # Rounding moves the sums with and without the contribution by at most half a step per entry.
    # Limiting entries moves no two sums apart.
    return clip + math.sqrt(dimension) * step


def clip_within(clip: float, dimension: int) -> float:
    """Return a smaller clip, at which each contribution moves the rounded sum by at most `clip`.

    `dimension` is the number of entries of the sum.
    """
    # Rounding moves the update by up to sqrt(dimension) steps. For errors of sums, 2^-13 of the
    # clip is reserved. Adding up n terms in float64, in any order, is wrong by at most n * 2^-53
    # times the sum of their magnitudes. Two sums of up to 2^18 contributions are therefore wrong by
    # at most 2 * 2^18 * 2^18 * 2^-53 = 2^-16 of the clip. The rest of the 2^-13 far exceeds the
    # error of a norm or a factor computed in float64.
    return clip * (1 - _ADDING) - math.sqrt(dimension) * grid_step(clip, dimension)


def as_update(total: Float64s, clip: float) -> Float32s:
    """Round `total` to multiples of `grid_step(clip, len(total))`. Returns the result in float32.

    `total` is a sum of contributions. Each moves the result by at most `clip` if its norm is at
    most `clip_within(clip, len(total))`.
    """
    step = grid_step(clip, len(total))
    return (to_grid(total, step) * step).astype(np.float32)

"""Sums of clipped contributions on a grid: what one contribution can move, with rounding counted.

A client's sum over its batch is as long as its batch is large and is not clipped; what is bounded
is what each example adds to it. Rounding comes after adding, and moves two sums that differ in one
contribution a little further apart than the contribution is long. The bounds here hold for every
input, in exact arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil._arrays import Float32s, Float64s, Int64s

#: A sum lies within so many steps of zero: a float32 holds these whole numbers.
LARGEST = 1 << 24
#: So many contributions may be added up: see `clip_within`.
MOST = 1 << 18
#: A grid's step is at most the root mean square coordinate of a full contribution over this.
_STEPS_PER_COORDINATE = 128
#: What adding up in float64 may take, as a share of the clip.
_ADDING = 2.0**-13


def grid_step(clip: float, dimension: int) -> float:
    """The step of the sums' grid: the largest power of two up to clip / (128 sqrt(dimension))."""
    bound = clip / (_STEPS_PER_COORDINATE * math.sqrt(max(dimension, 1)))
    return math.ldexp(1.0, math.frexp(bound)[1] - 1)


def to_grid(vector: npt.NDArray[np.floating[Any]], step: float, limit: int = LARGEST) -> Int64s:
    """`vector` in whole steps, the nearest, entries beyond `limit` of them as that limit.

    `step` is a power of two, so that the division is exact.
    """
    steps = np.clip(vector.astype(np.float64) / step, -limit, limit)
    whole: Int64s = np.rint(steps).astype(np.int64)
    return whole


def moved(clip: float, step: float, dimension: int) -> float:
    """How far a contribution of norm at most `clip` moves what `to_grid` makes of a sum, at most.

    clip + sqrt(dimension) * step, in the units of `clip`: of the two sums, each is moved by at
    most half a step an entry, and the limit brings none further apart. Two sums in which one
    contribution is another lie at most twice that apart, and either lies at most that from the sum
    without it, as `privacy.sampled_gaussian` asks for.
    """
    return clip + math.sqrt(dimension) * step


def clip_within(clip: float, dimension: int) -> float:
    """What contributions are clipped to so that each moves the update by at most `clip`, all in.

    `as_update` spends sqrt(dimension) steps. Adding up n terms in float64, in any order, is wrong
    by at most n * 2^-53 times the sum of their magnitudes, so that two sums of up to 2^18
    contributions are wrong by a share of the clip of at most 2 * 2^18 * 2^18 * 2^-53 = 2^-16; the
    rest of the 2^-13 is far more than a norm or a factor found in float64 is wrong by.
    """
    return clip * (1 - _ADDING) - math.sqrt(dimension) * grid_step(clip, dimension)


def as_update(total: Float64s, clip: float) -> Float32s:
    """A sum of contributions as the update that training gives: on its grid, exactly."""
    step = grid_step(clip, len(total))
    return (to_grid(total, step) * step).astype(np.float32)

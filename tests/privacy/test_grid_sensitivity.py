"""Sums on a grid: how far one contribution moves them, rounding and all."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fedveil.privacy.grid_sensitivity import (
    LARGEST,
    MOST,
    as_update,
    clip_within,
    grid_step,
    moved,
    to_grid,
)


def square(steps: np.ndarray) -> int:
    """The exact square of a norm in steps."""
    return sum(int(step) ** 2 for step in steps)


@pytest.mark.parametrize("dimension", [1, 3, 50, 1000])
@pytest.mark.parametrize("coarse", [1, 64, 4096])
def test_a_contribution_moves_a_rounded_sum_by_no_more_than_stated(
    dimension: int, coarse: int
) -> None:
    draw = np.random.default_rng(dimension)
    clip = 0.7
    step = grid_step(clip, dimension) * coarse
    bound = (Fraction(moved(clip, step, dimension)) / Fraction(step)) ** 2
    furthest = 0.0
    for turn in range(200):
        total = draw.normal(size=dimension) * step * draw.choice([1, 100, LARGEST])
        if turn % 2:  # every entry next to where its rounding changes
            total = (np.rint(total / step) + 0.5) * step - 1e-9 * step
        contribution = draw.normal(size=dimension)
        if turn % 4 == 3:
            contribution = np.ones(dimension)
        contribution *= clip / np.linalg.norm(contribution) * (1 - 1e-12)
        apart = square(to_grid(total + contribution, step) - to_grid(total, step))
        assert apart <= bound
        furthest = max(furthest, math.sqrt(apart) * step)
    assert furthest > clip or coarse == 1  # which is why the bound is not the clip itself


def test_the_limit_brings_nothing_further_apart() -> None:
    whole = to_grid(np.array([5.0, -5.0, 2.4, np.inf, -np.inf]), 0.5, limit=7)
    np.testing.assert_array_equal(whole, [7, -7, 5, 7, -7])


@pytest.mark.parametrize("clip", [1e-6, 0.3, 1e3])
@pytest.mark.parametrize("dimension", [1, 7, 61_706])
def test_an_update_is_on_its_grid_exactly(clip: float, dimension: int) -> None:
    step = grid_step(clip, dimension)
    assert clip / (256 * math.sqrt(dimension)) < step <= clip / (128 * math.sqrt(dimension))
    total = np.random.default_rng(0).normal(size=dimension) * clip * 1000
    update = as_update(total, clip)
    assert update.dtype == np.float32
    assert np.array_equal(update.astype(np.float64) / step, to_grid(total, step))
    assert 0.98 * clip < clip_within(clip, dimension) < clip


@pytest.mark.parametrize("dimension", [1, 7, 61_706])
def test_a_smaller_clip_leaves_room_for_the_errors_of_the_largest_sums(dimension: int) -> None:
    """Adding up n terms is wrong by at most n * 2^-53 of their magnitudes, in either sum."""
    clip = 0.3
    furthest = moved(clip_within(clip, dimension), grid_step(clip, dimension), dimension)
    assert furthest + 2 * MOST * (MOST * clip) * 2.0**-53 < clip

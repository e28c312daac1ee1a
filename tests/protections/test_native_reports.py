"""Native code that makes reports: it matches NumPy's bytes and only touches its own memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.base import packing
from fedveil.base.kernels import HAVE_NUMBA
from fedveil.entropy import Seeded
from fedveil.mechanisms.exact import discrete_gaussian, gaussian_loops
from fedveil.mechanisms.unary import bit_flips, rounding
from fedveil.secagg import fixed_point, shamir
from fenced import fenced

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")
LENGTH = 5003


def same(kernel: Any, *arguments: Any) -> tuple[Any, list[np.ndarray]]:
    """Run a kernel and its NumPy path within fences, check that they agree, and return the
    result."""
    plain, inside = (
        [change(a) if isinstance(a, np.ndarray) else a for a in arguments]
        for change in (np.copy, fenced)
    )
    expected, given = kernel.numpy_path(*plain), kernel(*inside)
    assert given == expected
    pairs = [p for p in zip(inside, plain, strict=True) if isinstance(p[0], np.ndarray)]
    assert [ours.tobytes() for ours, _ in pairs] == [theirs.tobytes() for _, theirs in pairs]
    return given, [ours for ours, _ in pairs]


def normals(scale: float) -> np.ndarray:
    return (Seeded(1).generator().normal(size=LENGTH) * scale).astype(np.float32)


@pytest.mark.parametrize("kind", [np.int16, np.int32])
def test_numbers_are_added_to_wider_ones(kind: type) -> None:
    numbers = (normals(1000)).astype(kind)
    _, (_, total) = same(packing._add, numbers, np.arange(LENGTH))
    assert total.tolist() == (np.arange(LENGTH) + numbers).tolist()


def test_an_update_is_added_and_what_lies_beyond_is_counted() -> None:
    start, update = normals(0.5), normals(1.0)[::-1].copy()
    beyond, _ = same(rounding.add_update, start, update, np.float32(1.5))
    assert 0 < beyond == np.count_nonzero(np.abs(start + update) > np.float32(1.5))
    huge = np.full(LENGTH, np.float32(3e38))
    assert same(rounding.add_update, huge, huge, np.float32(1.5))[0] == LENGTH
    for bad in (np.nan, np.inf, -np.inf):
        update[LENGTH - 1] = bad
        assert rounding.add_update(start, update, np.float32(1.5)) == -1


def test_the_states_of_a_moved_model_are_those_of_the_sum() -> None:
    start, update, states = normals(0.5), normals(1.0)[::-1].copy(), np.zeros(LENGTH, np.int16)
    clip = np.float32(1.5)
    arguments = (clip, 50, 1.5, states)
    beyond, (*_, given) = same(rounding._nearest_moved, start, update, *arguments)
    assert beyond == np.count_nonzero(np.abs(start + update) > clip) > 0
    np.testing.assert_array_equal(given, rounding.nearest_states(start + update, 50, 1.5))
    for bad in (np.nan, np.inf, -np.inf):
        update[LENGTH - 1] = bad
        assert rounding._nearest_moved(start, update, *arguments) == -1
    update[LENGTH - 1], start[0] = 0, np.nan
    assert rounding._nearest_moved(start, update, *arguments) == -2


def test_coins_leave_the_state_or_nothing() -> None:
    states, coins = normals(20).astype(np.int16), Seeded(5).words(LENGTH).astype(np.uint8)
    _, (*_, sums) = same(bit_flips._toss, states, coins, np.zeros(LENGTH, np.int16))
    np.testing.assert_array_equal(sums, np.where(coins % 2, states, 0))


@pytest.mark.parametrize("own", [-1, 0])
@pytest.mark.parametrize("place", [0, 101 * LENGTH - 60_000])
def test_lies_are_added_as_bit_by_bit(own: int, place: int) -> None:
    """Long gaps, adjacent lies, lies about the client's own bit, and gaps that lead beyond the
    codes."""
    states = normals(10).astype(np.int16)
    gaps = Seeded(6).integers(120, 3000).astype(np.int16)
    gaps[::7], gaps[3::11] = bit_flips._LONGEST_GAP, 0
    behind, (*_, sums) = same(bit_flips._add_lies, gaps, place, states, 50, own, states.copy())
    expected, at = states.astype(int), place
    for gap in gaps.tolist():
        at += gap
        if gap == bit_flips._LONGEST_GAP:
            continue
        parameter, state = at // 101, at % 101 - 50
        if parameter < LENGTH:
            expected[parameter] += own * state if state == states[parameter] else state
        at += 1
    assert behind == at
    assert (at > 101 * LENGTH) == (place > 0)
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize(("width", "count"), [(1, 1), (12, LENGTH), (25, 4097), (31, 9)])
def test_packed_numbers_are_added_or_none_of_them(width: int, count: int) -> None:
    low, high = -3, (1 << width) - 5
    numbers = Seeded(7).integers((1 << width) - 1, count) + low
    packed, total = packing.pack(numbers, low, width), np.arange(count)
    right, (_, added) = same(packing._add_within, packed, low, high, width, total)
    assert right
    np.testing.assert_array_equal(added, total + numbers)
    assert packing.add_within(packed, low, high, width, total.copy())
    numbers[-1] = high + 1
    wrong = packing.pack(numbers, low, width)
    fine, (_, kept) = same(packing._add_within, wrong, low, high, width, total)
    assert not fine
    np.testing.assert_array_equal(kept, total)
    assert not packing.add_within(packed[:-1], low, high, width, total)
    np.testing.assert_array_equal(total, np.arange(count))


@pytest.mark.parametrize("variance", [1, 50, 4_000_000])
def test_cells_are_added_and_what_words_leave_open_is_listed(variance: int) -> None:
    """Negative zeros, and words that start like a threshold."""
    thresholds, guide = discrete_gaussian._cell_table(variance)
    words = Seeded(2).words(LENGTH).view(np.uint32)[:LENGTH]
    words[::50] = thresholds[np.arange(len(words[::50])) % (len(thresholds) - 1)] << np.uint32(1)
    words[7] = 1
    listed = np.zeros(LENGTH, np.int32)
    for kind in (np.int64, np.int32):
        count, (*_, found) = same(
            gaussian_loops.add_cells, words, thresholds, guide, np.ones(LENGTH, kind), listed
        )
        assert {7, *range(0, LENGTH, 50)} <= {*found[:count].tolist()}


def test_entries_are_rounded_to_fixed_point() -> None:
    part, words = normals(2.0), Seeded(3).words(LENGTH).view(np.uint32)[:LENGTH]
    _, (*_, out) = same(fixed_point._round, part, words, 3.0, 127, np.zeros(LENGTH, np.int64))
    assert np.abs(out).max() == 127
    assert (np.abs(out - np.clip(part, -3, 3) * (127 / 3)) <= 1 + 1e-6).all()


@pytest.mark.parametrize("threshold", [1, 2, 34])
def test_polynomials_are_evaluated_in_the_field(threshold: int) -> None:
    coefficients = np.full((threshold, 10), shamir.PRIME - 1, np.uint64)
    coefficients[:, ::2] = Seeded(4).integers(shamir.PRIME, 5 * threshold).reshape(-1, 5)
    _, (_, values) = same(shamir._evaluate, coefficients, np.zeros((100, 10), np.uint64))
    exact = [
        sum(int(c) * 100**k for k, c in enumerate(column)) % shamir.PRIME
        for column in coefficients.T
    ]
    assert values[99].tolist() == exact

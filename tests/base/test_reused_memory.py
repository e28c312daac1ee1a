"""Memory is used again only if nothing refers to it any more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fedveil.base import reused_memory
from fedveil.base.array_types import Array
from fedveil.base.packing import pack

MANY = (1 << 22) + 77


@pytest.fixture
def reusing() -> Iterator[None]:
    reused_memory.start_reusing()
    yield
    reused_memory.stop_reusing()


def place(array: Array) -> int:
    return array.ctypes.data


def test_an_array_in_use_keeps_its_memory(reusing: None) -> None:
    first = reused_memory.empty(MANY, np.float32)
    at = place(first)
    users = [first[5:9], memoryview(first[3:]), first.view(np.uint8).reshape(4, -1)]
    del first
    while users:
        assert place(reused_memory.empty(MANY, np.int32)) != at
        users.pop()
    assert place(reused_memory.empty(MANY - 40, np.int32)) == at


def test_zeros_are_zero_in_memory_that_was_used(reusing: None) -> None:
    first = reused_memory.empty(MANY, np.int64)
    first[:] = 7
    at = place(first)
    del first
    second = reused_memory.zeros(MANY, np.int64)
    assert place(second) == at
    assert not second.any()


def test_a_short_array_takes_no_long_block(reusing: None) -> None:
    at = place(reused_memory.empty(3 * MANY, np.uint8))
    assert place(reused_memory.empty(MANY, np.uint8)) != at


def test_an_array_takes_the_smallest_block_that_fits(reusing: None) -> None:
    """The first, and largest, is left for an array that needs it."""
    large, small = (reused_memory.empty(size, np.uint8) for size in (MANY + 900, MANY + 90))
    places = place(small), place(large)
    del large, small
    first = reused_memory.empty(MANY, np.uint8)
    second = reused_memory.empty(MANY + 500, np.uint8)
    assert (place(first), place(second)) == places


def test_nothing_is_kept_unless_a_run_asks_for_it() -> None:
    reused_memory.start_reusing()
    reused_memory.start_reusing()
    reused_memory.empty(MANY, np.uint8)
    reused_memory.stop_reusing()
    assert reused_memory._blocks
    reused_memory.stop_reusing()
    reused_memory.empty(MANY, np.uint8)
    assert not reused_memory._blocks


@pytest.mark.parametrize("width", [23, 32])
def test_packed_numbers_have_no_trace_of_the_memory_before(width: int) -> None:
    numbers = np.arange(1_500_003) * 5 % 8_000_009
    fresh = pack(numbers, 0, width)
    reused_memory.start_reusing()
    used = reused_memory.empty(len(fresh) + 8, np.uint8)
    used.fill(255)
    at = place(used)
    del used
    again = pack(numbers, 0, width)
    reused_memory.stop_reusing()
    assert place(again) == at
    np.testing.assert_array_equal(again, fresh)

"""Masking and packing in one go, against the two steps one after the other."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedveil.base import two_threads
from fedveil.base.array_types import parts
from fedveil.base.packing import pack, packed_size
from fedveil.secagg.masked_vector import MadeInParts, masked
from fedveil.secagg.masking import Ring, add_masks
from fenced import fenced

SEEDS = [(bytes(range(32)), True), (bytes(range(1, 33)), False), (bytes(range(2, 34)), True)]


def two_steps(vector: np.ndarray, ring: Ring) -> bytes:
    lanes = vector.astype(ring.lane)
    add_masks(lanes, SEEDS)
    return pack(lanes, 0, ring.bits).tobytes()


def numbers(length: int, kind: Any) -> np.ndarray:
    return (np.arange(length) * 7919 % 201 - 100).astype(kind)


def in_parts(vector: np.ndarray) -> MadeInParts:
    """Return the vector, made in parts that all lie in one array."""
    room = np.empty(2 * len(vector), vector.dtype)

    def made(some: slice) -> Iterator[np.ndarray]:
        mine = room[some.start :]  # not shared between two threads
        for part in parts(some.stop, some.start):
            mine[: part.stop - part.start] = vector[part]
            yield mine[: part.stop - part.start]

    return MadeInParts(len(vector), made)


@pytest.mark.parametrize("bits", [7, 31, 32, 33, 40, 63, 64])
@pytest.mark.parametrize("length", [1, 5, 63, 65, 131_075, 200_003])
@pytest.mark.parametrize("long", [1, 1 << 22])  # two threads, or one
def test_it_is_what_masking_and_packing_give(
    bits: int, length: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_threads, "_LONG", long)
    ring = Ring(bits)
    for kind in (np.int32, np.int64):
        vector = numbers(length, kind)
        expected = two_steps(vector, ring)
        for given in (in_parts(vector), fenced(vector)):
            packed = masked(given, ring, SEEDS)
            assert packed.tobytes() == expected
            assert len(packed) == packed_size(length, bits)


@pytest.mark.parametrize(
    ("bits", "kind", "length", "own"),
    [
        (31, np.int32, 500, True), (31, np.int32, 128, True), (31, np.int32, 127, False),
        (32, np.int32, 500, False), (31, np.int64, 500, False), (33, np.int32, 500, False),
        (40, np.int64, 6, True), (40, np.int64, 5, False), (63, np.int64, 128, True),
    ],
)  # fmt: skip
def test_a_vector_with_room_for_the_result_is_overwritten(
    bits: int, kind: Any, length: int, own: bool
) -> None:
    vector = numbers(length, kind)
    before = vector.copy()
    packed = masked(vector, Ring(bits), SEEDS)
    assert np.shares_memory(packed, vector) == own
    assert np.array_equal(vector, before) == (not own)


def test_a_vector_that_cannot_be_overwritten_stays_as_it_is() -> None:
    whole = numbers(1000, np.int32)
    apart, fixed = whole[::2], whole[:500]
    fixed.flags.writeable = False
    for vector in (apart, fixed):
        expected = two_steps(vector, Ring(31))
        assert masked(vector, Ring(31), SEEDS).tobytes() == expected
    assert np.array_equal(whole, numbers(1000, np.int32))


@pytest.mark.parametrize("made", [in_parts, np.copy])
def test_no_copy_of_a_long_vector_is_made(made: Any) -> None:
    """Besides the packed numbers and the vector that is given, there is a part of the vector."""
    length, ring = 1_000_003, Ring(40)
    vector = made(numbers(length, np.int64))
    masked(vector, ring, SEEDS)  # compiles
    room = packed_size(length, 40) if made is in_parts else 0
    tracemalloc.start()
    masked(vector, ring, SEEDS)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < room + 3 * 8 * 65_536


def test_without_seeds_a_vector_is_packed_as_it_is() -> None:
    vector = numbers(1001, np.int64)
    expected = pack(vector, 0, 17).tobytes()
    assert masked(in_parts(vector), Ring(17), ()).tobytes() == expected

"""The ring, its packing, the masks and the fixed point, each against its plain definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedveil.base import packing, two_threads
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.secagg import fixed_point, masking
from fedveil.secagg.fixed_point import FixedPoint
from fedveil.secagg.masking import Ring, add_masks
from fenced import fenced
from scripted_entropy import Scripted, word

widths = st.integers(1, 64)


def plain_packed(elements: list[int], bits: int) -> bytes:
    number = sum(element << (bits * i) for i, element in enumerate(elements))
    return number.to_bytes(packing.packed_size(len(elements), bits), "little")


@given(st.integers(1, 2**20), st.integers(0, 2**42), st.integers(0, 2**61))
def test_the_ring_is_the_smallest_that_cannot_wrap(terms: int, largest: int, beyond: int) -> None:
    bits = Ring.for_sum(terms, largest, beyond).bits
    values = 2 * (terms * largest + beyond) + 1
    assert values <= 2**bits
    assert bits == 1 or values > 2 ** (bits - 1)


@given(widths, st.data())
def test_elements_stand_for_signed_numbers(bits: int, data: st.DataObject) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    numbers = [low, high, *data.draw(st.lists(st.integers(low, high), max_size=9))]
    ring = Ring(bits)
    lanes = ring.elements(np.array(numbers, np.int64))
    ring.reduce(lanes)
    assert lanes.tolist() == [n % 2**bits for n in numbers]
    assert ring.signed(lanes).tolist() == numbers


@given(widths, st.integers(1, 70), st.integers(0, 99))
def test_packing_is_the_plain_one_and_comes_back(bits: int, count: int, seed: int) -> None:
    ring = Ring(bits)
    lanes = Seeded(seed).words(count).astype(ring.lane)
    ring.reduce(lanes)
    packed = packing.pack(lanes, 0, bits)
    assert packed.tobytes() == plain_packed(lanes.tolist(), bits)
    assert packing.spare_bits_zero(packed, count, bits)
    start = Seeded(seed, 1).words(count).astype(ring.lane)
    total = start.copy()
    packing.add_packed(packed, bits, total)
    total -= lanes
    assert (total == start).all()


def numpy_path(loop: Any) -> Callable[..., None]:
    return loop.numpy_path  # type: ignore[no-any-return]


@settings(max_examples=30)
@given(widths, st.integers(1, 40_000))
def test_compiled_and_numpy_packing_are_the_same(bits: int, count: int) -> None:
    ring = Ring(bits)
    lanes = Seeded(bits, count).words(count).astype(ring.lane)
    ring.reduce(lanes)
    words = [np.zeros(count * bits // 64 + 2, np.uint64) for _ in range(2)]
    loops = packing.pack_into, numpy_path(packing.pack_into)
    for pack, target in zip(loops, words, strict=True):
        pack(target, lanes, 0, bits)
    assert (words[0] == words[1]).all()
    for add in (packing._add_packed, numpy_path(packing._add_packed)):
        total = np.zeros(count, ring.lane)
        add(words[0], bits, total)
        assert (total == lanes).all()


def test_bits_behind_the_last_entry_are_seen() -> None:
    packed = packing.pack(np.array([1, 2, 3], np.uint32), 0, 3)
    assert len(packed) == 2
    for bit in range(9, 16):
        forged = packed.copy()
        forged[1] |= np.uint8(1 << (bit - 8))
        assert not packing.spare_bits_zero(forged, 3, 3)


@pytest.mark.parametrize("bits", [7, 32, 33, 64])
@pytest.mark.parametrize("length", [1, 5, 100_003])
@pytest.mark.parametrize("long", [1, 1 << 22])  # two threads, or one
def test_a_mask_is_the_keystream_of_its_seed(
    bits: int, length: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_threads, "_LONG", long)
    ring = Ring(bits)
    seed, other = bytes(range(32)), bytes(range(1, 33))
    start = Seeded(0).words(length).astype(ring.lane)
    masked = fenced(start)
    add_masks(masked, [(seed, True), (other, False)])
    for key, sign in ((seed, 1), (other, -1)):
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        mask = np.frombuffer(stream.update(bytes(start.nbytes)), ring.lane)
        start = start + mask if sign > 0 else start - mask
    assert (masked == start).all()


def test_masks_of_more_seeds_than_are_held_at_once_come_off() -> None:
    seeds = [(i.to_bytes(32, "little"), i % 3 > 0) for i in range(700)]
    vector = np.arange(50, dtype=np.uint32)
    add_masks(vector, seeds)
    assert (vector != np.arange(50)).all()
    add_masks(vector, [(seed, not plus) for seed, plus in seeds])
    assert (vector == np.arange(50)).all()


@given(
    st.lists(st.floats(-20, 20), min_size=1, max_size=20), st.floats(0.01, 10), st.integers(2, 24)
)
def test_rounding_goes_to_one_of_the_two_neighbours(
    values: list[float], clip: float, bits: int
) -> None:
    fixed = FixedPoint(clip, bits)
    assert fixed.largest == 2 ** (bits - 1) - 1
    numbers = fixed.quantise(np.array(values), Seeded(0))
    exact = np.clip(values, -clip, clip) * (fixed.largest / clip)
    assert (np.abs(numbers - exact) <= 1 + 1e-6).all()
    assert np.abs(numbers).max() <= fixed.largest
    assert fixed.clips(np.array(values)) == (max(map(abs, values)) > clip)


@pytest.mark.parametrize("path", ["compiled", "numpy"])
def test_the_clip_itself_is_never_rounded_beyond_the_largest_number(path: str) -> None:
    """In floating point, 0.3 * (7 / 0.3) is above 7, so a draw may round it to 8."""
    assert 0.3 * (7 / 0.3) > 7
    loop = fixed_point._round if path == "compiled" else numpy_path(fixed_point._round)
    words, numbers = np.array([0, 2**32 - 1], np.uint32), np.empty(2, np.int64)
    loop(np.array([0.3, -0.3]), words, 0.3, 7, numbers)
    assert numbers.tolist() == [7, -7]


@pytest.mark.parametrize("value", [0.3, -0.3, 0.001, -2.875])
def test_rounding_is_right_on_average(value: float) -> None:
    """One number of two, with the probability that makes the mean exact."""
    fixed, n = FixedPoint(7.0, 4), 40_000
    numbers = fixed.quantise(np.full(n, value), Seeded(0, "rounding"))
    up = int((numbers == np.floor(value) + 1).sum())
    assert ((numbers == np.floor(value)) | (numbers == np.floor(value) + 1)).all()
    assert binomtest(up, n, value - np.floor(value)).pvalue > 1e-6


def test_rounding_up_needs_a_uniform_number_below_the_fraction() -> None:
    fixed = FixedPoint(7.0, 4)
    below, half, zero = word((1 << 31) - 1), word(1 << 31), word(0)
    assert fixed.quantise(np.array([2.5, 2.5]), Scripted(below, half)).tolist() == [3, 2]
    assert fixed.quantise(np.array([7.0, -7.0]), Scripted(zero, zero)).tolist() == [7, -7]
    for kind in (np.float16, np.float32, np.longdouble, np.int8):
        told = fixed.quantise(np.array([2.5, -3]).astype(kind), Scripted(below, zero))
        assert told.tolist() == [2 if kind is np.int8 else 3, -3]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(InvalidValue, match="NaN"):
        FixedPoint(1.0, 8).quantise(np.array([bad]), Seeded(0))


@pytest.mark.parametrize("clip", [5e-324, 1e-280, 1e280, 1.7e308])
def test_a_clip_whose_step_or_sums_no_float_holds_is_refused(clip: float) -> None:
    with pytest.raises(InvalidValue, match=r"clip = .* is outside \[1.18305e-271, 8.45271e\+270\]"):
        FixedPoint(clip, 16)


def test_a_vector_of_several_parts_is_rounded_in_its_own_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fixed_point, "_PART", 7)
    point, vector = FixedPoint(1.0, 11), np.linspace(-0.9, 0.8, 23).astype(np.float32)
    found = point.quantise(vector, Seeded(3), np.full(23, 5000))
    assert np.abs(found * point.step - vector).max() <= point.step * (1 + 1e-9)


@pytest.mark.parametrize("bits", [20, 40])
def test_a_sum_of_several_parts_becomes_numbers_in_its_own_memory(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes of 32 bits lie at the beginning of the memory that the numbers fill."""
    monkeypatch.setattr(masking, "_SIGNED", 3)
    ring, room, numbers = Ring(bits), np.zeros(10, np.int64), np.arange(-5, 5) * 3**10
    lanes = room.view(ring.lane)[:10]
    lanes[:] = ring.elements(numbers)
    ring.reduce(lanes)
    assert ring.signed(lanes.copy()).tolist() == numbers.tolist()
    assert ring.signed(lanes, out=room) is room
    assert room.tolist() == numbers.tolist()


def test_a_mask_leaves_the_room_that_older_ciphers_need(monkeypatch: pytest.MonkeyPatch) -> None:
    class Needing(masking.Keystream):
        def write(self, target: memoryview, size: int) -> None:
            assert len(target) >= size + 15
            super().write(target, size)

    vector = np.zeros(70_001, np.uint32)
    add_masks(vector, [(bytes(range(32)), True)])
    monkeypatch.setattr(masking, "Keystream", Needing)
    again = np.zeros(70_001, np.uint32)
    add_masks(again, [(bytes(range(32)), True)])
    assert again.any()
    assert again.tolist() == vector.tolist()

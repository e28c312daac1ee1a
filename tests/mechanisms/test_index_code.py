"""The code of index sets: round trips, length, one code for each set, hostile bytes."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue, MessageInvalid
from fedveil.mechanisms.signds import index_code
from fedveil.mechanisms.signds.index_code import decode_indices, encode_indices

SHAPES = [
    (1, 1), (2, 1), (8, 3), (255, 128), (256, 255), (1000, 1), (1000, 999), (1000, 1000),
    (1000, 30), (1000, 125), (1000, 126), (61_706, 238), (66_521, 149), (66_521, 20_000),
    (10**8, 43), (10**9, 1), (2**31 - 1, 50),
]  # fmt: skip


def entropy_bits(dim: int, count: int) -> float:
    return math.log2(math.comb(dim, count))


def arrangements(dim: int, count: int) -> list[np.ndarray]:
    """The first, the last, both ends, evenly spread, and two uniform sets."""
    half = count // 2
    sets = [
        np.arange(count),
        np.arange(dim - count, dim),
        np.concatenate([np.arange(half), np.arange(dim - count + half, dim)]),
        np.arange(count) * dim // count,
    ]
    entropy = Seeded(0, "sets", dim, count)
    for _ in range(2):
        members: set[int] = set()
        pool = min(count, dim - count)
        while len(members) < pool:
            members.add(int(entropy.integer(dim)))
        some = np.array(sorted(members), np.int64)
        sets.append(some if pool == count else np.setdiff1d(np.arange(dim), some))
    return sets


@pytest.mark.parametrize(("dim", "count"), SHAPES)
def test_round_trip_and_length(dim: int, count: int) -> None:
    for members in arrangements(dim, count):
        code = encode_indices(members, dim)
        back = decode_indices(code, dim, count)
        assert back.dtype == np.int64
        assert np.array_equal(back, members)
        assert len(code) <= 1.04 * entropy_bits(dim, count) / 8 + 4


@st.composite
def index_sets(draw: st.DrawFn) -> tuple[int, list[int]]:
    dim = draw(st.integers(1, 3000) | st.integers(1, 40))
    members = draw(st.sets(st.integers(0, dim - 1), max_size=300))
    if draw(st.booleans()):
        members = set(range(dim)) - members
    return dim, sorted(members)


@given(index_sets())
def test_any_set_comes_back_and_stays_near_its_entropy(case: tuple[int, list[int]]) -> None:
    dim, members = case
    code = encode_indices(np.array(members, np.int64), dim)
    assert decode_indices(code, dim, len(members)).tolist() == members
    assert len(code) <= 1.04 * entropy_bits(dim, len(members)) / 8 + 4


@pytest.mark.parametrize(
    ("members", "dim", "code"),
    [
        # [0, 1) is split in proportion to members left / marks left, members below; the code is
        # the least byte inside, and no byte where that is zero
        ([0], 4, ""),  # [0, 1/4)
        ([1], 4, "40"),  # [1/4, 1/2)
        ([2], 4, "80"),
        ([3], 4, "c0"),
        # [0, 1/2), of it the last 2/3, of it the first half: [1/6, 1/3), and 256/6 = 42.7
        ([0, 2], 4, "2b"),
        ([], 4, ""),
        ([0, 1, 2, 3], 4, ""),
        # 64 numbers: 3 low bits, 8 buckets, 8 marks: 21 is in bucket 2, low bits 101
        ([21], 64, "a040"),
    ],
)
def test_codes_worked_by_hand(members: list[int], dim: int, code: str) -> None:
    assert encode_indices(np.array(members, np.int64), dim).hex() == code


@given(st.binary(max_size=40), st.integers(1, 400), st.data())
def test_hostile_bytes_are_refused_or_are_the_one_code_of_a_set(
    code: bytes, dim: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, dim))
    try:
        members = decode_indices(code, dim, count)
    except MessageInvalid:
        return
    assert len(members) == count
    assert encode_indices(members, dim) == code


@given(index_sets(), st.data())
def test_a_changed_code_is_never_taken_for_the_same_set(
    case: tuple[int, list[int]], data: st.DataObject
) -> None:
    dim, members = case
    code = encode_indices(np.array(members, np.int64), dim)
    flipped = bytearray(code)
    if code:
        at = data.draw(st.integers(0, len(code) - 1))
        flipped[at] ^= data.draw(st.integers(1, 255))
    for other in (bytes(flipped), code + b"\0", code + b"\1", code[:-1]):
        if other == code:
            continue
        with contextlib.suppress(MessageInvalid):
            assert decode_indices(other, dim, len(members)).tolist() != members


def test_a_code_of_another_size_or_dimension_is_no_code_here() -> None:
    code = encode_indices(np.arange(0, 61_706, 300), 61_706)
    with pytest.raises(MessageInvalid):
        decode_indices(code, 61_706, 238)
    with pytest.raises(MessageInvalid):
        decode_indices(code * 1000, 61_706, 206)
    with pytest.raises(MessageInvalid):
        decode_indices(b"", 61_706, 206)


@pytest.mark.parametrize("members", [[3, 2], [1, 1], [-1, 2], [0, 10], [[1, 2]], [0.5], ["a"]])
def test_what_is_no_ascending_set_is_refused(members: list[object]) -> None:
    with pytest.raises(InvalidValue, match="indices"):
        encode_indices(members, 10)


def test_a_set_too_large_for_the_code_is_refused() -> None:
    with pytest.raises(InvalidValue, match="too large for this code"):
        decode_indices(b"", 2**31, 2**30)


@given(index_sets())
def test_the_compiled_path_gives_the_same_bytes(case: tuple[int, list[int]]) -> None:
    if not hasattr(index_code._write_marks, "numpy_path"):
        pytest.skip("numba is not installed: there is one path")
    dim, members = case
    places = np.array(members, np.int64)
    rows = [np.zeros(dim // 4 + 64, np.uint8) for _ in range(2)]
    sizes = [
        index_code._write_marks(places, dim, rows[0]),
        index_code._write_marks.numpy_path(places, dim, rows[1]),
    ]
    assert sizes[0] == sizes[1]
    assert rows[0][: sizes[0]].tobytes() == rows[1][: sizes[1]].tobytes()
    back = [np.zeros(len(places), np.int64) for _ in range(2)]
    index_code._read_marks(rows[0][: sizes[0]], dim, back[0])
    index_code._read_marks.numpy_path(rows[0][: sizes[0]], dim, back[1])
    assert np.array_equal(back[0], places)
    assert np.array_equal(back[1], places)

"""Native code for many points, run in plain Python: its formulas, its arithmetic, its borders.

The processor needs no vector instructions for these tests.
"""

from __future__ import annotations

import hashlib
from functools import reduce
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rbcl

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.vertical.ristretto import point_batches
from fedveil.vertical.ristretto.point_batches import NoPoint, Points

if not HAVE_NUMBA:
    pytest.skip("native code needs numba", allow_module_level=True)

from fedveil.vertical.ristretto import field_lanes, native_points
from fedveil.vertical.ristretto.field_lanes import LANES, LIMBS, WIDTH
from fedveil.vertical.ristretto.point_formulas import ENTRIES, PARTS, P
from plain_ristretto import PlainLanes, limbs_of, numbers_of, plain  # noqa: F401

ORDER = 2**252 + 27742317777372353535851937790883648493
#: Numbers at the borders of a limb, of the field and of 255 bits.
BORDERS = [0, 1, 19, 2**51 - 1, 2**51, P - 1, P, P + 18]
#: The largest limbs that an operation may leave.
MOST = np.full(LIMBS, 2**51 + 2**16 - 1, np.uint64)


def hashes(count: int) -> Points:
    joined = b"".join(hashlib.sha512(b"%d" % number).digest() for number in range(count))
    return np.frombuffer(joined, np.uint8).reshape(-1, 64)


def points(count: int) -> Points:
    made = (rbcl.crypto_core_ristretto255_from_hash(row.tobytes()) for row in hashes(count))
    return np.frombuffer(b"".join(made), np.uint8).reshape(-1, 32)


def rows(*encoded: str) -> Points:
    return np.frombuffer(bytes.fromhex("".join(encoded)), np.uint8).reshape(-1, 32)


def scalar(number: int) -> bytes:
    return number.to_bytes(32, "little")


#: No encodings of points: RFC 9496, A.2, and zero with the highest bit.
INVALID = [
    "00" * 32, "01" + "00" * 31, "ff" * 32, "00" * 31 + "80",
    "f3" + "ff" * 30 + "7f", "ed" + "ff" * 30 + "7f", "ee" + "ff" * 30 + "7f",
    "ec" + "ff" * 30 + "7f",
    "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",
    "3eb858e78f5a7254d8c9731174a94f76755fd3941c0ac93735c07ba14579630e",
    "ed57ffd8c914fb201471d1c3d245ce3c746fcbe63a3679d51b6a516ebebe0e20",
]  # fmt: skip


@pytest.mark.parametrize("turn", range(LANES))
def test_eight_numbers_at_once_are_those_of_python(turn: int) -> None:
    """Eight lanes hold the border numbers, and all lanes the largest limbs."""
    lanes = PlainLanes()
    border = limbs_of(BORDERS)
    largest = np.repeat(MOST[:, None], LANES, axis=1)
    largest[turn % LIMBS] -= np.uint64(2**16)
    for a, b in product((border, largest), (np.roll(border, turn, axis=1), largest)):
        one, other = numbers_of(a), numbers_of(b)
        for made, wanted in (
            (lanes.multiplied(list(a), list(b)), [x * y for x, y in zip(one, other, strict=True)]),
            (lanes.added(list(a), list(b)), [x + y for x, y in zip(one, other, strict=True)]),
            (lanes.subtracted(list(a), list(b)), [x - y for x, y in zip(one, other, strict=True)]),
            (lanes.squared(list(b)), [y * y for y in other]),
        ):
            assert [x % P for x in numbers_of(made)] == [x % P for x in wanted]
            assert (np.stack(made) < 2**51 + 2**16).all()
        assert numbers_of(lanes.smallest(list(b))) == [y % P for y in other]
        for mask, wanted_mask in (
            (lanes.is_zero(list(b)), [y % P == 0 for y in other]),
            (lanes.is_negative(list(b)), [y % P % 2 == 1 for y in other]),
        ):
            assert np.stack(mask).tolist() == [[-is_set % 2**64 for is_set in wanted_mask]] * LIMBS


def test_a_choice_takes_the_second_number_where_the_mask_is_set() -> None:
    lanes, memory = PlainLanes(), np.zeros(4 * WIDTH, np.uint64)
    ones = np.repeat(np.array([[0, 1, 0, 0, 1, 1, 0, 1]], np.uint64), LIMBS, axis=0)
    for at, element in enumerate((0 * ones - ones, limbs_of(BORDERS), limbs_of(BORDERS[::-1]))):
        memory[at * WIDTH : (at + 1) * WIDTH] = element.ravel()
    field_lanes._selected(lanes, memory, 3, 0, 1, 2)
    found = numbers_of(memory[3 * WIDTH :].reshape(LIMBS, LANES))
    pairs = zip(BORDERS, BORDERS[::-1], ones[0].tolist(), strict=True)
    assert found == [other if is_set else one for one, other, is_set in pairs]


@pytest.mark.parametrize("digit", [0, 6, ENTRIES - 1])
def test_the_entry_whose_mask_is_set_is_copied(digit: int) -> None:
    table, masks = 5, (5 + ENTRIES * PARTS) * WIDTH
    memory = np.arange(masks + 2 * ENTRIES, dtype=np.uint64)
    memory[masks:] = 0
    memory[masks + ENTRIES + digit] = 2**64 - 1
    begin = (table + PARTS * digit) * WIDTH
    wanted = memory[begin : begin + PARTS * WIDTH].copy()
    PlainLanes().pick(memory, 1, table, masks + ENTRIES)
    assert np.array_equal(memory[WIDTH : (1 + PARTS) * WIDTH], wanted)
    assert memory[:WIDTH].tolist() == list(range(WIDTH))


@pytest.mark.usefixtures("plain")
def test_multiples_and_hashes_are_libsodiums() -> None:
    times, one = rbcl.crypto_scalarmult_ristretto255, points(11)
    digits = scalar(0x0FEDCBA987654321 << 192 | 0x1122334455667788 << 60 | 1)
    found = native_points.raised(one, digits)
    assert found is not None
    assert found.tobytes() == b"".join(times(digits, row.tobytes()) for row in one)
    extreme = hashes(3).copy()
    extreme[0, 32:], extreme[1] = 0, 255
    extreme[2, :32] = np.frombuffer(scalar(P - 1), np.uint8)
    last = scalar(ORDER - 1)
    assert native_points.hashed(extreme, last).tobytes() == b"".join(
        times(last, rbcl.crypto_core_ristretto255_from_hash(row.tobytes())) for row in extreme
    )


@pytest.mark.usefixtures("plain")
def test_a_sum_over_several_rounds_of_tables_is_libsodiums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables a round: 19 points take two rounds, and the second has one table."""
    monkeypatch.setattr(native_points, "TABLES", 2)
    some = points(19)
    weights = hashes(19)[:, 10:13].copy()
    weights[0], weights[1], weights[-1] = 255, 1, 0x10
    found = native_points.summed(weights, some)
    assert found is not None
    parts = point_batches.summed(weights, some)
    add = rbcl.crypto_core_ristretto255_add
    assert point_batches.total(found) == reduce(add, [row.tobytes() for row in parts])


@pytest.mark.usefixtures("plain")
def test_an_invalid_encoding_is_refused_in_each_batch_of_eight() -> None:
    some, weights = points(9), np.ones((9, 1), np.uint8)
    assert native_points.summed(weights, some) is not None
    for number, encoded in enumerate(INVALID):
        wrong = some.copy()
        wrong[-1 if number % 2 else 3] = rows(encoded)
        assert native_points.summed(weights, wrong) is None, encoded


@pytest.mark.usefixtures("plain")
def test_a_multiple_that_is_the_identity_is_refused() -> None:
    some = points(2)
    assert native_points.raised(some, scalar(ORDER)) is None
    with pytest.raises(NoPoint):
        point_batches.raised(some, scalar(ORDER))


@pytest.mark.usefixtures("plain")
def test_a_point_has_one_encoding() -> None:
    """The negative number decodes to the same point."""
    some = points(3).copy()
    negative = scalar(P - int.from_bytes(some[1].tobytes(), "little"))
    some[2] = np.frombuffer(negative, np.uint8)
    assert native_points.raised(some[:2], scalar(7)) is not None
    assert native_points.raised(some, scalar(7)) is None


def test_encodings_are_even_numbers_between_zero_and_the_fields_size() -> None:
    """Numbers just below p are valid, also those of which only some words are those of p."""
    words = [2**64 - 19, 2**64 - 1, 2**64 - 1, 2**63 - 1]
    valid = [[2, 0, 0, 0], [0, 0, 0, 2**62], [words[0] - 1, *words[1:]]]
    for place, below in ((1, 7), (2, 2**63), (3, 2**63 - 2)):
        valid.append([2**64 - 2, *words[1:place], below, *words[place + 1 :]])
    for row in valid:
        assert native_points._are_points(np.array([row], np.uint64)), row
    invalid = [[0] * 4, [1, 5, 5, 5], words, [words[0] + 1, *words[1:]], [0, 0, 0, 2**63]]
    for row in invalid:
        mixed = np.array([valid[0], row, valid[1]], np.uint64)
        assert not native_points._are_points(mixed), row


def test_a_few_points_are_checked_as_many_are() -> None:
    """libsodium itself may ignore the highest bit."""
    some, weights = points(3), hashes(3)[:, :5]
    marked = some.copy()
    marked[2, -1] |= 128
    wrong = [marked, *(np.vstack([some[:2], rows(encoded)]) for encoded in INVALID)]
    for each in wrong:
        with pytest.raises(NoPoint):
            point_batches.raised(each, scalar(8))
        with pytest.raises(NoPoint):
            point_batches.summed(weights, each)
    found: Any = point_batches.summed(weights, some)
    times = rbcl.crypto_scalarmult_ristretto255
    for row, weight, point in zip(found, weights, some, strict=True):
        number = int.from_bytes(weight.tobytes(), "big")
        assert row.tobytes() == times(scalar(number), point.tobytes())


def test_native_code_runs_if_the_processor_numba_and_its_settings_allow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has = {"avx512ifma": True, "avx2": True}
    host = SimpleNamespace(get_host_cpu_features=lambda: has)
    monkeypatch.setattr(field_lanes, "binding", host)
    for name in ("CPU_NAME", "CPU_FEATURES", "DISABLE_JIT"):
        monkeypatch.setattr(field_lanes.config, name, None)
    monkeypatch.setattr(field_lanes.config, "ENABLE_AVX", 1)
    native = [point_batches._native(count) for count in (255, 256)]
    assert native == [None, native_points]
    for name, value in (
        ("CPU_NAME", "generic"), ("CPU_FEATURES", "+avx2"), ("ENABLE_AVX", 0), ("DISABLE_JIT", 1),
    ):  # fmt: skip
        with monkeypatch.context() as patched:
            patched.setattr(field_lanes.config, name, value)
            assert point_batches._native(269) is None, name
    with monkeypatch.context() as patched:
        patched.setitem(has, "avx512ifma", False)
        assert point_batches._native(269) is None
    monkeypatch.setattr(point_batches, "HAVE_NUMBA", False)
    assert point_batches._native(269) is None

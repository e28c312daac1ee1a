"""Native code for many points gives libsodium's bytes, and refuses what libsodium refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import reduce

import numpy as np
import pytest
import rbcl

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.vertical.ristretto import point_batches
from fedveil.vertical.ristretto.point_batches import NoPoint, Points

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
COUNT = 269

if HAVE_NUMBA:
    from fedveil.vertical.ristretto import native_points

pytestmark = pytest.mark.skipif(
    not HAVE_NUMBA or not native_points.can_run(), reason="needs AVX-512 IFMA"
)


def hashes(count: int) -> Points:
    joined = b"".join(hashlib.sha512(b"%d" % number).digest() for number in range(count))
    return np.frombuffer(joined, np.uint8).reshape(-1, 64)


def scalars() -> Iterator[bytes]:
    """Yield scalars with digits at their ends, and one of every digit."""
    for number in (1, 2, 15, 16, ORDER - 1, 2**252, int("fedcba9876543210" * 3, 16)):
        yield number.to_bytes(32, "little")


@pytest.fixture(scope="module")
def points() -> Points:
    made = (rbcl.crypto_core_ristretto255_from_hash(row.tobytes()) for row in hashes(COUNT))
    return np.frombuffer(b"".join(made), np.uint8).reshape(-1, 32)


def test_multiples_and_hashes_have_libsodiums_bytes(points: Points) -> None:
    """The count is no multiple of eight, and a few points take libsodium's path."""
    extreme = hashes(COUNT).copy()
    extreme[0, 32:], extreme[1] = 0, 255
    extreme[2, :32] = np.frombuffer((P - 1).to_bytes(32, "little"), np.uint8)
    for at, scalar in enumerate(scalars()):
        some = np.roll(points, at, axis=0)
        few = slice(9 * at, 9 * at + 9)
        native = point_batches.raised(some, scalar)
        assert np.array_equal(native[few], point_batches.raised(some[few], scalar))
        native, few = point_batches.hashed(extreme, scalar), slice(2 * at, 2 * at + 5)
        assert np.array_equal(native[few], point_batches.hashed(extreme[few], scalar))


def test_the_sum_is_that_of_libsodium(points: Points) -> None:
    weights = hashes(COUNT)[:, :16].copy()
    weights[0], weights[1], weights[-1] = 255, 1, 0x10
    parts = [point_batches.summed(weights[at : at + 90], points[at : at + 90]) for at in (0, 90)]
    parts.append(point_batches.summed(weights[180:], points[180:]))
    native = point_batches.total(point_batches.summed(weights, points))
    add = rbcl.crypto_core_ristretto255_add
    assert native == reduce(add, [row.tobytes() for part in parts for row in part])


@pytest.mark.parametrize("last", [False, True])
def test_no_invalid_encoding_passes_among_many_points(points: Points, last: bool) -> None:
    """Try each bad encoding of RFC 9496, A.2 and more, at the first and the last place."""
    bad = [
        "00" * 32, "01" + "00" * 31, "ff" * 32,
        "00" * 31 + "80",  # zero with the highest bit
        "f3" + "ff" * 30 + "7f", "ed" + "ff" * 30 + "7f", "ee" + "ff" * 30 + "7f",  # not below p
        "ec" + "ff" * 30 + "7f",  # p - 1: y is zero
        "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",  # no square
        "3eb858e78f5a7254d8c9731174a94f76755fd3941c0ac93735c07ba14579630e",  # x y is negative
        "ed57ffd8c914fb201471d1c3d245ce3c746fcbe63a3679d51b6a516ebebe0e20",  # a negative number
    ]  # fmt: skip
    weights = np.ones((COUNT, 16), np.uint8)
    for encoded in bad:
        raw = bytes.fromhex(encoded)
        with pytest.raises(RuntimeError):
            rbcl.crypto_scalarmult_ristretto255(bytes([8]) + bytes(31), raw)
        wrong = points.copy()
        wrong[-1 if last else 0] = np.frombuffer(raw, np.uint8)
        with pytest.raises(NoPoint):
            point_batches.raised(wrong, bytes([8]) + bytes(31))
        with pytest.raises(NoPoint):
            point_batches.summed(weights, wrong)


def test_a_scalar_is_read_nowhere_but_as_masks() -> None:
    """The native code's memory differs in masks alone, and every digit has one mask of ones."""
    one, other = (native_points._memory(scalar) for scalar in list(scalars())[-3:-1])
    masks = native_points.formulas.MASKS
    assert np.array_equal(one[:masks], other[:masks])
    for memory in (one, other):
        table = memory[masks:].reshape(64, 16)
        assert set(table.ravel().tolist()) == {0, 2**64 - 1}
        assert (table > 0).sum(axis=1).tolist() == [1] * 64

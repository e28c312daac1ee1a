"""Native code for many points gives libsodium's bytes, and refuses what libsodium refuses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
import rbcl

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.entropy import Secure
from fedveil.errors import MessageInvalid
from fedveil.vertical.remote.blinding import Blinding, check_raised
from fedveil.vertical.ristretto import point_batches
from fedveil.vertical.ristretto.point_batches import NoPoint, Points

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
COUNT = 269

if HAVE_NUMBA:
    from fedveil.vertical.ristretto import field_lanes, native_points

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


def test_parties_with_and_without_native_code_understand_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lie among many ids is refused, whoever computes natively."""
    k, other, ids = Blinding(Secure()), Blinding(Secure()), np.arange(300, 300 + COUNT)
    points, forged = other.blinded(ids, "train"), Blinding(Secure())
    raised = k.raised(points)
    lies = [raised[::-1], np.roll(raised, 1, axis=0), forged.raised(points), raised.copy()]
    lies[-1][COUNT - 1] = forged.raised(points[-1:])[0]
    proofs = [k.proved(points, claimed, "train") for claimed in (raised, *lies)]
    for least in (1, 10 * COUNT):
        monkeypatch.setattr(point_batches, "LEAST", least)
        assert np.array_equal(other.raised(k.blinded(ids[:40], "train")), raised[:40])
        check_raised(k.commitment, points, raised, proofs[0], "train")
        for claimed, proof in zip(lies, proofs[1:], strict=True):
            with pytest.raises(MessageInvalid, match="proof"):
                check_raised(k.commitment, points, claimed, proof, "train")


def test_a_scalar_is_read_nowhere_but_as_masks() -> None:
    """The native code's memory differs in masks alone, and every digit has one mask of ones."""
    one, other = (native_points._memory(scalar) for scalar in list(scalars())[-3:-1])
    masks = native_points.MASKS
    assert np.array_equal(one[:masks], other[:masks])
    for memory in (one, other):
        table = memory[masks:].reshape(64, 16)
        assert set(table.ravel().tolist()) == {0, 2**64 - 1}
        assert (table > 0).sum(axis=1).tolist() == [1] * 64


def test_no_instruction_branches_on_a_number() -> None:
    """Read the machine code: of all operations, and of the choice of a table's entry by masks."""
    from numba import njit, types

    @njit
    def all_of_them(s: Any, out: int, a: int) -> None:
        field_lanes.pick(s, out, a, out)
        field_lanes.multiply(s, out, a, out)
        field_lanes.square(s, out, a)
        field_lanes.add(s, out, a, out)
        field_lanes.subtract(s, out, a, out)
        field_lanes.select(s, out, a, out, a)
        field_lanes.zero(s, out, a)
        field_lanes.negative(s, out, a)
        field_lanes.shrink(s, out, a)

    all_of_them.compile((types.uint64[::1], types.int64, types.int64))
    (code,) = all_of_them.inspect_asm().values()
    bodies = re.findall(r"^fedveil\.field\.(\w+):$(.*?)\n\.Lfunc_end", code, re.M | re.S)
    assert len({name for name, _ in bodies}) == 9
    for name, body in bodies:
        found = re.findall(r"^\t([a-z]\w*)", body, re.M)
        assert "retq" in found, name
        assert not [one for one in found if one.startswith(("j", "cmov", "loop", "call"))], name

"""Blinding of ids, so that two parties can find their common ids and learn no others.

The group is ristretto255 (RFC 9496). A party draws an exponent k and blinds an id x as H(x)^k,
where H maps an id to a point whose logarithm nobody knows. With the other party's exponent l,
H(x)^(k l) does not depend on who blinds first. Without k and l, distinguishing H(x)^k from a random
point is as hard as the decisional Diffie-Hellman problem, if H is a random oracle. This also holds
for ids from a small range.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from fedveil.base.array_types import utf8
from fedveil.entropy import Entropy, Secure
from fedveil.errors import MessageInvalid
from fedveil.vertical.remote import exponent_proof
from fedveil.vertical.ristretto import point_batches
from fedveil.vertical.ristretto.point_batches import HASH_BYTES, POINT_BYTES, Points, group
from fedveil.vertical.rows import Ids

_NO_POINTS = np.empty((0, POINT_BYTES), np.uint8)
#: The number of points that a thread processes at a time.
_PIECE = 512
_DOMAIN = b"fedveil: an id of %s\0"


class Blinding:
    """A secret exponent k, drawn for each alignment and never saved."""

    def __init__(self, entropy: Entropy) -> None:
        self._exponent: bytes = group().crypto_core_ristretto255_scalar_reduce(entropy.token(64))

    def blinded(self, ids: Ids, subset: str) -> Points:
        """Return H(x)^k for every id x in `ids`, with the secret exponent k.

        H maps an id to a point of the group. Each `subset` of examples has its own H.
        """
        domain = _DOMAIN % subset.encode()
        joined = b"".join(hashlib.sha512(domain + text).digest() for text in texts(ids))
        hashes = np.frombuffer(joined, np.uint8).reshape(-1, HASH_BYTES)
        return _in_pieces(lambda some: point_batches.hashed(hashes[some], self._exponent), len(ids))

    def raised(self, points: Points) -> Points:
        """Return each point to the power of this party's secret exponent.

        Raises `MessageInvalid` if a point is invalid or is the group's identity element.
        """
        return _in_pieces(
            lambda some: point_batches.raised(points[some], self._exponent), len(points)
        )

    @property
    def commitment(self) -> bytes:
        """Return G^k, with the group's generator G and this party's secret exponent k."""
        committed: bytes = group().crypto_scalarmult_ristretto255_base(self._exponent)
        return committed

    def proved(self, points: Points, raised: Points, domain: str) -> bytes:
        """Return a proof that `raised` are the `points` to the power of this party's exponent.

        The proof does not reveal the exponent, and is valid only for `domain`, which names the
        subset of examples and the side that proves.
        """
        weighted, _ = _weighted(self.commitment, points, raised, domain, both=False)
        return exponent_proof.prove(group(), self._exponent, self.commitment, weighted, Secure())


def check_raised(
    commitment: bytes, points: Points, raised: Points, proof: bytes, domain: str
) -> None:
    """Raise `MessageInvalid` unless `proof` shows that `raised` are the `points` to a power k.

    `commitment` is G^k for the same k and the group's generator G. The proof also shows that the
    prover knows k. `domain` must be the text that the prover passed to `Blinding.proved`.
    """
    if len(commitment) != POINT_BYTES:
        raise MessageInvalid(f"its commitment has {len(commitment)} bytes")
    if commitment[-1] >= 128:  # some versions of libsodium ignore the highest bit
        raise MessageInvalid("its commitment is not a point of the group")
    weighted, other = _weighted(commitment, points, raised, domain, both=True)
    exponent_proof.check(group(), commitment, weighted, other, proof)


def _weighted(
    commitment: bytes, points: Points, raised: Points, domain: str, *, both: bool
) -> tuple[bytes, bytes]:
    """Return two sums: Σ d_i B_i for `points` B_i, and Σ d_i D_i for `raised` D_i.

    The d_i are the proof's weights (`exponent_proof.weights`) for `commitment` and `domain`. If
    `both` is False, the second sum is not computed, and is returned as b"".
    """
    drawn = exponent_proof.weights(commitment, points, raised, domain.encode())
    return _sum(drawn, points), _sum(drawn, raised) if both else b""


def _sum(weights: Points, points: Points) -> bytes:
    found = _in_pieces(lambda some: point_batches.summed(weights[some], points[some]), len(points))
    return point_batches.total(found)


def _in_pieces(work: Callable[[slice], Points], count: int) -> Points:
    pieces = [slice(start, start + _PIECE) for start in range(0, count, _PIECE)]
    try:
        return np.concatenate([_NO_POINTS, *_threads().map(work, pieces)])
    except point_batches.NoPoint:
        raise MessageInvalid("it contains 32 bytes that are not a point of the group") from None


def texts(ids: Ids) -> Iterable[bytes]:
    """Return the ids as bytes. A prefix tells numbers and texts apart (`kind_of`)."""
    kind = kind_of(ids)
    if ids.dtype.kind == "U":
        return map(kind.__add__, utf8(ids))
    return (kind + b"%d" % number for number in ids.tolist())


def kind_of(ids: Ids) -> bytes:
    """Return a prefix that differs for numbers and texts, so that 7 and "7" are different ids."""
    return b"text " if ids.dtype.kind == "U" else b"number "


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "blinding")

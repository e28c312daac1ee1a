"""Blinding of ids in a group, so that two parties find their common ids and learn no others.

The group is ristretto255 (RFC 9496), of prime order. H maps an id to a point whose logarithm nobody
knows: SHA-512, then the group's own map of 64 bytes. A party draws an exponent k, and blinds an id
x as H(x)^k. Exponents commute: if the other party has exponent l, H(x)^(k l) does not depend on who
blinds first. Without k and l, telling H(x)^k from a random point is as hard as the decisional
Diffie-Hellman problem, if H is a random oracle. That holds for ids from a small range too.
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
    """A secret exponent k, drawn once for an alignment and never saved."""

    def __init__(self, entropy: Entropy) -> None:
        self._exponent: bytes = group().crypto_core_ristretto255_scalar_reduce(entropy.token(64))

    def blinded(self, ids: Ids, subset: str) -> Points:
        """Return H(x)^k of every id x, in order. Each `subset` of examples has a different H."""
        domain = _DOMAIN % subset.encode()
        joined = b"".join(hashlib.sha512(domain + text).digest() for text in texts(ids))
        hashes = np.frombuffer(joined, np.uint8).reshape(-1, HASH_BYTES)
        return _in_pieces(lambda some: point_batches.hashed(hashes[some], self._exponent), len(ids))

    def raised(self, points: Points) -> Points:
        """Return P^k of every point P.

        Raises `MessageInvalid` for an invalid point or the identity.
        """
        return _in_pieces(
            lambda some: point_batches.raised(points[some], self._exponent), len(points)
        )

    @property
    def commitment(self) -> bytes:
        """Return G^k with the group's generator G: the commitment that proofs refer to."""
        committed: bytes = group().crypto_scalarmult_ristretto255_base(self._exponent)
        return committed

    def proved(self, points: Points, raised: Points, subset: str) -> bytes:
        """Prove that `raised` are `points` raised to the exponent in the commitment."""
        weighted, _ = _weighted(self.commitment, points, raised, subset, both=False)
        return exponent_proof.prove(group(), self._exponent, self.commitment, weighted, Secure())


def check_raised(
    commitment: bytes, points: Points, raised: Points, proof: bytes, subset: str
) -> None:
    """Raise `MessageInvalid` unless the exponent of `commitment` turns `points` into `raised`.

    The proof also shows that the prover knows this exponent.
    """
    if len(commitment) != POINT_BYTES:
        raise MessageInvalid(f"its commitment has {len(commitment)} bytes")
    weighted, other = _weighted(commitment, points, raised, subset, both=True)
    exponent_proof.check(group(), commitment, weighted, other, proof)


def _weighted(
    commitment: bytes, points: Points, raised: Points, subset: str, *, both: bool
) -> tuple[bytes, bytes]:
    """Return Σ d_i B_i and, if `both`, Σ d_i D_i, else an empty value.

    B_i are `points`, D_i are `raised`, and d_i their weights in the proof (`exponent_proof`).
    """
    drawn = exponent_proof.weights(commitment, points, raised, subset.encode())
    return _sum(drawn, points), _sum(drawn, raised) if both else b""


def _sum(weights: Points, points: Points) -> bytes:
    """Return Σ d_i P_i for weights d_i and points P_i, computed in pieces by several threads."""
    found = _in_pieces(lambda some: point_batches.summed(weights[some], points[some]), len(points))
    return point_batches.total(found)


def _in_pieces(work: Callable[[slice], Points], count: int) -> Points:
    """Apply `work` to the rows, on one thread per core. It releases the GIL."""
    pieces = [slice(start, start + _PIECE) for start in range(0, count, _PIECE)]
    try:
        return np.concatenate([_NO_POINTS, *_threads().map(work, pieces)])
    except point_batches.NoPoint:
        raise MessageInvalid("it contains 32 bytes that are not a point of the group") from None


def texts(ids: Ids) -> Iterable[bytes]:
    """Return the ids as bytes. The bytes of a whole number and of a text are never equal."""
    if ids.dtype.kind == "U":
        return map(b"text ".__add__, utf8(ids))
    return (b"number %d" % number for number in ids.tolist())


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "blinding")

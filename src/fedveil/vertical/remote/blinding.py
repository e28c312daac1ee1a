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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.entropy import Entropy, Secure
from fedveil.errors import MessageInvalid, MissingExtra
from fedveil.vertical.remote import exponent_proof
from fedveil.vertical.rows import Ids

#: Points, one in each row.
Points: TypeAlias = npt.NDArray[np.uint8]
POINT_BYTES = 32
#: The number of points that a thread processes at a time.
_PIECE = 512
_DOMAIN = b"fedveil: an id of %s\0"


class Blinding:
    """A secret exponent k, drawn once for an alignment and never saved."""

    def __init__(self, entropy: Entropy) -> None:
        self._exponent: bytes = _group().crypto_core_ristretto255_scalar_reduce(entropy.token(64))

    def blinded(self, ids: Ids, subset: str) -> Points:
        """Return H(x)^k of every id x, in order. Each `subset` of examples has a different H."""
        point, domain = _group().crypto_core_ristretto255_from_hash, _DOMAIN % subset.encode()

        def one(text: bytes) -> bytes:
            return self._raised(point(hashlib.sha512(domain + text).digest()))

        return self._all(list(texts(ids)), one)

    def raised(self, points: Points) -> Points:
        """Return P^k of every point P.

        Raises `MessageInvalid` for an invalid point or the identity.
        """
        return self._all([row.tobytes() for row in points], self._raised)

    @property
    def commitment(self) -> bytes:
        """Return G^k with the group's generator G: the commitment that proofs refer to."""
        committed: bytes = _group().crypto_scalarmult_ristretto255_base(self._exponent)
        return committed

    def proved(self, points: Points, raised: Points, subset: str) -> bytes:
        """Prove that `raised` are `points` raised to the exponent in the commitment."""
        weighted, _ = _weighted(self.commitment, points, raised, subset, both=False)
        return exponent_proof.prove(_group(), self._exponent, self.commitment, weighted, Secure())

    def _raised(self, point: bytes) -> bytes:
        raised: bytes = _group().crypto_scalarmult_ristretto255(self._exponent, point)
        return raised

    def _all(self, given: Sequence[bytes], one: Callable[[bytes], bytes]) -> Points:
        """Apply `one` to each item, on one thread per core. The library releases the GIL."""

        def piece(start: int) -> bytes:
            return b"".join(map(one, given[start : start + _PIECE]))

        starts = range(0, len(given), _PIECE)
        try:
            joined = b"".join(_threads().map(piece, starts))
        except RuntimeError as error:
            raise MessageInvalid(
                "it contains 32 bytes that are not a point of the group"
            ) from error
        return np.frombuffer(joined, np.uint8).reshape(-1, POINT_BYTES)


def check_raised(
    commitment: bytes, points: Points, raised: Points, proof: bytes, subset: str
) -> None:
    """Raise `MessageInvalid` unless the exponent of `commitment` turns `points` into `raised`.

    The proof also shows that the prover knows this exponent.
    """
    if len(commitment) != POINT_BYTES:
        raise MessageInvalid(f"its commitment has {len(commitment)} bytes")
    weighted, other = _weighted(commitment, points, raised, subset, both=True)
    exponent_proof.check(_group(), commitment, weighted, other, proof)


def _weighted(
    commitment: bytes, points: Points, raised: Points, subset: str, *, both: bool
) -> tuple[bytes, bytes]:
    """Return Σ d_i B_i and, if `both`, Σ d_i D_i, else an empty value.

    B_i are `points`, D_i are `raised`, and d_i their weights in the proof (`exponent_proof`).
    """
    ours, theirs = ([row.tobytes() for row in rows] for rows in (points, raised))
    drawn = exponent_proof.weights(commitment, ours + theirs, subset.encode())
    return _sum(drawn, ours), _sum(drawn, theirs) if both else b""


def _sum(scalars: Sequence[bytes], points: Sequence[bytes]) -> bytes:
    """Return Σ d_i P_i for scalars d_i and points P_i, computed in pieces by several threads."""
    times, add = _group().crypto_scalarmult_ristretto255, _group().crypto_core_ristretto255_add

    def piece(start: int) -> bytes:
        pairs = zip(scalars[start : start + _PIECE], points[start : start + _PIECE], strict=True)
        total: bytes = reduce(add, (times(scalar, point) for scalar, point in pairs))
        return total

    try:
        return reduce(add, _threads().map(piece, range(0, len(points), _PIECE)))
    except RuntimeError as error:
        raise MessageInvalid("it contains 32 bytes that are not a point of the group") from error


def texts(ids: Ids) -> Iterable[bytes]:
    """Return the ids as bytes. The bytes of a whole number and of a text are never equal."""
    if ids.dtype.kind == "U":
        return (b"text " + text.encode() for text in ids.tolist())
    return (b"number %d" % number for number in ids.tolist())


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "blinding")


@cache
def _group() -> Any:
    """Import rbcl, the library of ristretto255, and return its module.

    On import, rbcl writes its copy of libsodium to a temporary file and loads it from there. This
    function deletes that file.
    """
    try:
        import rbcl
    except ImportError:
        raise MissingExtra("rbcl", "vertical", "alignment: intersection") from None
    with suppress(AttributeError, OSError):
        Path(rbcl._sodium._name).unlink()
    return rbcl

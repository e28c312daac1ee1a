"""Ids hidden in a group, so that two parties find those that both hold and learn no others.

The group is ristretto255 (RFC 9496), of prime order. H sends an id to a point of it whose logarithm
nobody knows: SHA-512, then the group's own map of 64 bytes. A party draws an exponent k, and an id
x becomes H(x)^k. Exponents commute: H(x)^(k l) is the same whoever raised it first. Who knows
neither k nor l tells H(x)^k from a random point only by solving the decisional Diffie-Hellman
problem, H being a random oracle; that holds for ids from a small range too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.entropy import Entropy
from fedveil.errors import MessageInvalid, MissingExtra
from fedveil.vertical.rows import Ids

#: One point in each row.
Points: TypeAlias = npt.NDArray[np.uint8]
POINT_BYTES = 32
#: So many go to a thread at a time.
_PIECE = 512
_DOMAIN = b"fedveil: an id of %s\0"


class Blinding:
    """An exponent, drawn once for an alignment and kept nowhere."""

    def __init__(self, entropy: Entropy) -> None:
        self._exponent: bytes = _group().crypto_core_ristretto255_scalar_reduce(entropy.token(64))

    def blinded(self, ids: Ids, subset: str) -> Points:
        """H(x)^k of every id, in their order; another H for every subset."""
        point, domain = _group().crypto_core_ristretto255_from_hash, _DOMAIN % subset.encode()

        def one(text: bytes) -> bytes:
            return self._raised(point(hashlib.sha512(domain + text).digest()))

        return self._all(list(texts(ids)), one)

    def raised(self, points: Points) -> Points:
        """P^k of every point; raises `MessageInvalid` where one is none, or the group's unit."""
        return self._all([row.tobytes() for row in points], self._raised)

    def _raised(self, point: bytes) -> bytes:
        raised: bytes = _group().crypto_scalarmult_ristretto255(self._exponent, point)
        return raised

    def _all(self, given: Sequence[bytes], one: Callable[[bytes], bytes]) -> Points:
        """`one` of each, by as many threads as there are cores: the library holds no lock."""

        def piece(start: int) -> bytes:
            return b"".join(map(one, given[start : start + _PIECE]))

        starts = range(0, len(given), _PIECE)
        try:
            joined = b"".join(_threads().map(piece, starts))
        except RuntimeError as error:
            raise MessageInvalid("it holds 32 bytes that are no point of the group") from error
        return np.frombuffer(joined, np.uint8).reshape(-1, POINT_BYTES)


def texts(ids: Ids) -> Iterable[bytes]:
    """The ids as bytes; whole numbers and texts have nothing in common."""
    if ids.dtype.kind == "U":
        return (b"text " + text.encode() for text in ids.tolist())
    return (b"number %d" % number for number in ids.tolist())


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "blinding")


@cache
def _group() -> Any:
    """The library; it copies itself into a temporary file to be loaded, which goes at once."""
    try:
        import rbcl
    except ImportError:
        raise MissingExtra("rbcl", "vertical", "alignment: intersection") from None
    with suppress(AttributeError, OSError):
        Path(rbcl._sodium._name).unlink()
    return rbcl

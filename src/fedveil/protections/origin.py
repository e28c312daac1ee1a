"""A digest of what the server sends to clients for training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fedveil.base.array_types import Float32s
from fedveil.base.message import Message, encode

#: Returns the digest of what the server sends for training. A large model takes long to digest, so
#: only a protection that needs the digest calls this function.
Origin: TypeAlias = Callable[[], bytes]


def model_alone() -> bytes:
    """Return an empty digest: the server sends only the model, which is in the context itself."""
    return b""


class VectorDigest:
    """Returns the SHA-256 digest of a vector, and computes it once for calls with the same array.

    The array must not change between two calls.
    """

    def __init__(self) -> None:
        self._last: tuple[Float32s, bytes] | None = None

    def __call__(self, vector: Float32s) -> bytes:
        if self._last is None or self._last[0] is not vector:
            digest = hashlib.sha256(np.ascontiguousarray(vector).data).digest()
            self._last = vector, digest
        return self._last[1]


def origin_of(
    sent: Float32s, dimension: int, told: Message, digest_of: VectorDigest | None = None
) -> bytes:
    """Return a SHA-256 digest of the vector `sent` and of the fields `told`.

    Both are what the server sends to clients for training, and `dimension` is the number of entries
    of an update. If `sent` has exactly this number of entries, it is only the model. If `told` is
    empty, too, the digest is empty. `digest_of` digests the vector. Clients that share one digest
    it once.

    Secure aggregation unmasks a sum only if all of its clients have received the same data.
    Otherwise a lying server could send valid data to one client, and to all others data with which
    their training fails.
    """
    if len(sent) == dimension and not told:
        return b""
    digest = (digest_of or VectorDigest())(sent)
    return hashlib.sha256(digest + encode(dict(sorted(told.items())))).digest() if told else digest

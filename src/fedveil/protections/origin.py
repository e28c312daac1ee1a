"""A digest of what the server sends to clients for training."""

from __future__ import annotations

import hashlib

import numpy as np

from fedveil.base.array_types import Float32s
from fedveil.base.message import Message, encode


def origin_of(sent: Float32s, dimension: int, told: Message) -> bytes:
    """Return a SHA-256 digest of the vector `sent` and of the fields `told`.

    Both are what the server sends to clients for training, and `dimension` is the number of entries
    of an update. If `sent` has exactly this number of entries, it is only the model. If `told` is
    empty, too, the digest is empty.

    Secure aggregation unmasks a sum only if its clients have received the same. Otherwise a lying
    server could send one client what it needs, and all others what makes their training fail.
    """
    if len(sent) == dimension and not told:
        return b""
    digest = hashlib.sha256(np.ascontiguousarray(sent).data).digest()
    return hashlib.sha256(digest + encode(dict(sorted(told.items())))).digest() if told else digest

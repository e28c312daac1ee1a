"""Tags of shares. Holders and the server use them to recognise a wrong share.

A dealer sends the server a tag of each share: the first 16 bytes of a SHA-256 of the round's terms,
the dealer, the holder, the kind (a share of a seed or of a key) and the share. The server sends the
tag to the holder, which refuses the dealer if the share that it received has another tag. So a
holder that does not refuse, but later discloses a share with another tag, lies. A share is uniform
among 2^305 values, so a tag reveals nothing about its share. It is infeasible to find another share
with the same tag.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Literal, TypeAlias

from fedveil.secagg.shamir import SHARE_BYTES

TAG_BYTES = 16

#: The secret that a share belongs to: the client's mask seed, or its mask key.
Kind: TypeAlias = Literal[0, 1]
SEED: Kind = 0
KEY: Kind = 1

_PLACE = struct.Struct("<qqB")


class Tagger:
    """Computes the tags of a round's shares. `context` is the digest of the round's terms."""

    def __init__(self, context: bytes) -> None:
        self._prefix = b"fedveil share" + context

    def tags(
        self, ends: Iterable[tuple[int, int]], kinds: Iterable[Kind], shares: bytes
    ) -> list[bytes]:
        """Return the tag of each share. `shares` has the bytes of all shares, one after another.

        `ends` has each share's (dealer, holder). `kinds` says if a share is of the seed or the key.
        """
        prefix, place, sha256 = self._prefix, _PLACE.pack, hashlib.sha256
        starts = range(0, len(shares), SHARE_BYTES)
        return [
            sha256(
                prefix + place(dealer, holder, kind) + shares[start : start + SHARE_BYTES]
            ).digest()[:TAG_BYTES]
            for (dealer, holder), kind, start in zip(ends, kinds, starts, strict=True)
        ]

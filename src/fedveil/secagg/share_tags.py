"""Tags of shares: what a server holds to tell a true share from a wrong one.

Whoever deals shares tells the server a tag of each, the first 16 bytes of a SHA-256 of the share
and of where it belongs. A share is uniform in a space of 2^305, so that its tag says nothing about
it; another share with the same tag is out of reach.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Literal, TypeAlias

from fedveil.secagg.shamir import SHARE_BYTES

TAG_BYTES = 16

#: Which of a client's two secrets a share is of: its own mask's seed, or its mask key.
Kind: TypeAlias = Literal[0, 1]
SEED: Kind = 0
KEY: Kind = 1

_PLACE = struct.Struct("<qqB")


class Tagger:
    """Tags of one round."""

    def __init__(self, context: bytes) -> None:
        self._prefix = b"fedveil share" + context

    def tags(
        self, ends: Iterable[tuple[int, int]], kinds: Iterable[Kind], shares: bytes
    ) -> list[bytes]:
        """The tag of each share, one after another in `shares`; ends are (dealer, holder)."""
        prefix, place, sha256 = self._prefix, _PLACE.pack, hashlib.sha256
        starts = range(0, len(shares), SHARE_BYTES)
        return [
            sha256(
                prefix + place(dealer, holder, kind) + shares[start : start + SHARE_BYTES]
            ).digest()[:TAG_BYTES]
            for (dealer, holder), kind, start in zip(ends, kinds, starts, strict=True)
        ]

"""The AES-256-CTR keystream of a key, with a counter that starts at zero."""

from __future__ import annotations

import math
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

#: The largest number of bytes of one call: they keep the cipher busy and stay in the cache.
MOST_AT_ONCE = 1 << 18
_ZEROS = memoryview(bytes(MOST_AT_ONCE))
_COUNTER_BYTES = 16
# GCM with a nonce of zeros encrypts by the same keystream, from its third block on. OpenSSL has
# code for GCM that uses wider instructions, and takes half the time. It starts after the first
# bytes, because most streams are short, and ends at GCM's own limit of 2^36 - 32 bytes.
_BEFORE_GCM = 2 * _COUNTER_BYTES
_FIRST_BYTES = 1 << 16
_LAST_BYTES = (1 << 36) - 2 * MOST_AT_ONCE


class Keystream:
    """Writes a key's keystream to memory, one piece after another.

    The size of each piece but the last must be a multiple of 16 bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = algorithms.AES(key)
        self._made, self._until = 0, float(_FIRST_BYTES)
        self._update_into = self._from(0)

    def write(self, target: memoryview, size: int) -> None:
        """Write the next `size` bytes of the keystream to the beginning of `target`.

        Up to 15 bytes after the written ones may change too.
        """
        if self._made >= self._until:
            self._turn()
        self._update_into(_ZEROS[:size], target)
        self._made += size

    def _turn(self) -> None:
        if self._made >= _LAST_BYTES:
            self._update_into, self._until = self._from(self._made // _COUNTER_BYTES), math.inf
            return
        self._update_into = Cipher(self._key, modes.GCM(bytes(12))).encryptor().update_into
        self._until = _LAST_BYTES
        unused = memoryview(bytearray(MOST_AT_ONCE))
        for start in range(_BEFORE_GCM, self._made, MOST_AT_ONCE):
            self._update_into(_ZEROS[: min(MOST_AT_ONCE, self._made - start)], unused)

    def _from(self, block: int) -> Any:
        counter = modes.CTR(block.to_bytes(_COUNTER_BYTES, "big"))
        return Cipher(self._key, counter).encryptor().update_into

"""The AES-256-CTR keystream of a key, with a counter that starts at zero."""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

#: The largest number of bytes of one call: they keep the cipher busy and stay in the cache.
MOST_AT_ONCE = 1 << 18
_ZEROS = memoryview(bytes(MOST_AT_ONCE))


class Keystream:
    """Writes a key's keystream to memory, one piece after another."""

    def __init__(self, key: bytes) -> None:
        counter = modes.CTR(bytes(algorithms.AES.block_size // 8))
        self._update_into = Cipher(algorithms.AES(key), counter).encryptor().update_into

    def write(self, target: memoryview, size: int) -> None:
        """Write the next `size` bytes of the keystream to the beginning of `target`.

        `size` is at most `MOST_AT_ONCE`. `target` has room for 15 more bytes, which older versions
        of the library need and may change.
        """
        self._update_into(_ZEROS[:size], target)

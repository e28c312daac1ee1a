"""The AES-256-CTR keystream of a key."""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BLOCK_BYTES = algorithms.AES.block_size // 8
#: The largest number of bytes of one call: they keep the cipher busy and stay in the cache.
MOST_AT_ONCE = 1 << 18
_ZEROS = memoryview(bytes(MOST_AT_ONCE))


class Keystream:
    """Writes a key's keystream to memory, one piece after another, from block `first` on.

    A block has `BLOCK_BYTES` bytes. The cipher's counter is the number of the block.
    """

    def __init__(self, key: bytes, first: int = 0) -> None:
        counter = modes.CTR(first.to_bytes(BLOCK_BYTES, "big"))
        self._update_into = Cipher(algorithms.AES(key), counter).encryptor().update_into

    def write(self, target: memoryview, size: int) -> None:
        """Write the next `size` bytes of the keystream to the beginning of `target`.

        `size` is at most `MOST_AT_ONCE`. `target` has room for 15 more bytes, which older versions
        of the library need and may change.
        """
        self._update_into(_ZEROS[:size], target)

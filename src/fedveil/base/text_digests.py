"""BLAKE2b digests (RFC 7693) of many texts, which native code computes 64 at a time."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Uint8s, utf8
from fedveil.base.kernels import HAVE_NUMBA, compiled

#: The bytes of a block of the hash function. Native code hashes texts of one block.
_BLOCK: Final = 128
#: With fewer texts, hashlib is faster than the start of native code.
_FEW, _LANES = 1 << 14, 64
_INITIAL = np.array([
    0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
    0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
], np.uint64)  # fmt: skip
_ORDERS = np.array([[int(digit, 16) for digit in order] for order in (
    "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8",
    "905724afe1bc683d", "2c6a0b834d75fe19", "c51fed4a0763928b",
    "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0", "0123456789abcdef",
    "ea489fd61c02b753",
)])  # fmt: skip
_MIXED = np.array([
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
])  # fmt: skip


@compiled()
def _compress(
    state: Array, blocks: Array, hashed: Array, last: bool, v: Array, digests: Array
) -> None:
    lanes = v.shape[1]
    for word in range(8):
        for i in range(lanes):
            v[word, i], v[8 + word, i] = state[word], _INITIAL[word]
    for i in range(lanes):
        v[12, i] ^= hashed[i]
        if last:
            v[14, i] = ~v[14, i]
    for step in range(8 * len(_ORDERS)):
        g, order = step & 7, step >> 3
        a, b, c, d = _MIXED[g, 0], _MIXED[g, 1], _MIXED[g, 2], _MIXED[g, 3]
        x, y = _ORDERS[order, 2 * g], _ORDERS[order, 2 * g + 1]
        for i in range(lanes):
            p, q, r, s = v[a, i], v[b, i], v[c, i], v[d, i]
            p += q + blocks[x, i]
            s ^= p
            s = s >> np.uint64(32) | s << np.uint64(32)
            r += s
            q ^= r
            q = q >> np.uint64(24) | q << np.uint64(40)
            p += q + blocks[y, i]
            s ^= p
            s = s >> np.uint64(16) | s << np.uint64(48)
            r += s
            q ^= r
            q = q >> np.uint64(63) | q << np.uint64(1)
            v[a, i], v[b, i], v[c, i], v[d, i] = p, q, r, s
    for i in range(len(digests)):
        for word in range(digests.shape[1]):
            digests[i, word] = state[word] ^ v[word, i] ^ v[8 + word, i]


@compiled()
def _digests(
    state: Array, before: int, prefix: Array, letters: Array, blocks: Array, v: Array, words: Array
) -> None:
    lanes = v.shape[1]
    hashed = np.zeros(lanes, np.uint64)
    for first in range(0, len(letters), lanes):
        blocks[:] = 0
        for lane in range(min(lanes, len(letters) - first)):
            size = letters.shape[1]
            while size and not letters[first + lane, size - 1]:
                size -= 1
            for at in range(len(prefix) + size):
                if at < len(prefix):
                    code = np.uint64(prefix[at])
                else:
                    code = np.uint64(letters[first + lane, at - len(prefix)])
                blocks[at >> 3, lane] |= code << np.uint64(8 * (at & 7))
            hashed[lane] = before + len(prefix) + size
        _compress(state, blocks, hashed, True, v, words[first : first + lanes])


def text_digests(
    texts: npt.NDArray[np.str_], digest_bytes: int, key: bytes = b"", prefix: bytes = b""
) -> Uint8s:
    """Return the digest of `prefix` followed by each text as UTF-8, one digest per row.

    The digests have `digest_bytes` bytes, a multiple of 8. `key` is BLAKE2b's key.
    """
    width = texts.dtype.itemsize // 4
    # Native code hashes a block for each text. An empty text after a key, without prefix, has none.
    has_block = prefix or not key
    if HAVE_NUMBA and has_block and len(texts) >= _FEW and len(prefix) + width <= _BLOCK:
        letters = np.ascontiguousarray(texts).view(np.uint32).reshape(len(texts), width)
        if letters.max() < 128:
            return _native(letters, digest_bytes, key, prefix)
    keyed = hashlib.blake2b(prefix, key=key, digest_size=digest_bytes)

    def digest(text: bytes) -> bytes:
        one = keyed.copy()  # costs half of a new one
        one.update(text)
        return one.digest()

    return np.frombuffer(b"".join(map(digest, utf8(texts))), np.uint8).reshape(-1, digest_bytes)


def _native(letters: Array, digest_bytes: int, key: bytes, prefix: bytes) -> Uint8s:
    state = _INITIAL.copy()
    state[0] ^= np.uint64(0x01010000 ^ len(key) << 8 ^ digest_bytes)
    blocks, v = np.zeros((16, _LANES), np.uint64), np.empty((16, _LANES), np.uint64)
    before = 0
    if key:  # it is hashed first, as a block of its own
        before, keyed = _BLOCK, np.empty((1, 8), np.uint64)
        blocks[:, 0] = np.frombuffer(key.ljust(_BLOCK, b"\0"), "<u8")
        _compress(state, blocks, np.full(_LANES, before, np.uint64), False, v, keyed)
        state = keyed[0]
    words = np.empty((len(letters), digest_bytes // 8), np.uint64)
    first = np.frombuffer(prefix, np.uint8)
    _digests(state, before, first, letters, blocks, v, words)
    return words.view(np.uint8)

"""Simulated clients' derived keys, sixteen at a time and without Python's lock.

HKDF-SHA256 (RFC 5869) of 32 bytes to 32 bytes, equal to the derivation in `keys` byte for byte, for
processors with AVX-512, if numba is installed. Only simulations use it, where the keys are no
secrets and are not wiped. Keys of data that leaves a machine are derived only by OpenSSL.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedveil.base.arrays import Int64s, Uint8s, Uint32s
from fedveil.base.kernels import compiled
from fedveil.secagg.wide_code import as_keys, has_instructions, instruction

AVAILABLE = has_instructions("avx512f")
KEY_BYTES = 32
_LANES, _BLOCK_WORDS, _STATE_WORDS, _ROUNDS = 16, 16, 8, 64
_ENDS_BYTES = 16


def _roots(primes: Sequence[int], power: int) -> list[int]:
    """Return the first 32 fractional bits of the primes' square or cube roots."""
    scaled = [prime << 32 * power for prime in primes]
    roots = [bisect_right(range(1 << 37), n, key=lambda root: root**power) - 1 for n in scaled]
    return [root & 0xFFFFFFFF for root in roots]


_PRIMES = [n for n in range(2, 312) if all(n % d for d in range(2, math.isqrt(n) + 1))]
#: The constants of SHA-256 (FIPS 180-4, 4.2.2 and 5.3.3).
_K = _roots(_PRIMES, 3)
_IV = np.array(_roots(_PRIMES[:_STATE_WORDS], 2), np.uint32)

_VECTOR = ir.VectorType(ir.IntType(32), _LANES)


def _every(value: int) -> Any:
    return ir.Constant(_VECTOR, [value] * _LANES)


class _Words:
    """SHA-256's functions of words (FIPS 180-4, 4.1.2), on a vector of them."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def add(self, *words: Any) -> Any:
        """Return the sum of the words."""
        total = words[0]
        for word in words[1:]:
            total = self._builder.add(total, word)
        return total

    def mixed(self, word: Any, one: int, two: int, three: int, *, shift: bool = False) -> Any:
        """Xor the word rotated right by three counts, or by two and shifted by the third."""
        xor = self._builder.xor
        last = self._builder.lshr(word, _every(three)) if shift else self._turned(word, three)
        return xor(xor(self._turned(word, one), self._turned(word, two)), last)

    def choice(self, e: Any, f: Any, g: Any) -> Any:
        """Return the bits of f where e has a one, and of g elsewhere."""
        builder = self._builder
        return builder.xor(g, builder.and_(e, builder.xor(f, g)))

    def majority(self, a: Any, b: Any, c: Any) -> Any:
        """Return the bits that at least two of the words have."""
        builder = self._builder
        return builder.or_(builder.and_(a, b), builder.and_(c, builder.or_(a, b)))

    def _turned(self, word: Any, count: int) -> Any:
        name = f"llvm.fshr.v{_LANES}i32"
        return instruction(self._builder, name, _VECTOR, word, word, _every(count))


def _compression(typing: Any, state: Any, block: Any) -> Any:
    """Compress a block into the state (FIPS 180-4, 6.2.2), with the standard's names."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        words = _Words(builder)

        def places(i: int, count: int) -> list[Any]:
            data = context.make_array(signature.args[i])(context, builder, arguments[i]).data
            row = [builder.gep(data, [ir.IntType(64)(n * _LANES)]) for n in range(count)]
            return [builder.bitcast(place, _VECTOR.as_pointer()) for place in row]

        rows = places(0, _STATE_WORDS)
        before = [builder.load(place, align=4, typ=_VECTOR) for place in rows]
        w = [builder.load(at, align=4, typ=_VECTOR) for at in places(1, _BLOCK_WORDS)]
        for t in range(_BLOCK_WORDS, _ROUNDS):
            late = words.mixed(w[t - 2], 17, 19, 10, shift=True)
            early = words.mixed(w[t - 15], 7, 18, 3, shift=True)
            w.append(words.add(late, w[t - 7], early, w[t - 16]))
        a, b, c, d, e, f, g, h = before
        for t in range(_ROUNDS):
            t1 = words.add(h, words.mixed(e, 6, 11, 25), words.choice(e, f, g), _every(_K[t]), w[t])
            t2 = words.add(words.mixed(a, 2, 13, 22), words.majority(a, b, c))
            a, b, c, d, e, f, g, h = words.add(t1, t2), a, b, c, words.add(d, t1), e, f, g
        for place, old, new in zip(rows, before, (a, b, c, d, e, f, g, h), strict=True):
            builder.store(words.add(old, new), place, align=4)

    return types.void(state, block), code


# Compiled code sees this as untyped.
_write_compression: Any = intrinsic(_compression)


@compiled()
def _compress(state: Uint32s, block: Uint32s) -> None:
    """Compress a block into the state. A function, so that its code exists once."""
    _write_compression(state, block)


@compiled()
def _hmac(key: Uint32s, message: Uint32s, state: Uint32s, block: Uint32s) -> None:
    """Set the state to HMAC-SHA256 of a message of one block, already padded."""
    for turn in range(2):
        pad = np.uint32(0x5C5C5C5C if turn else 0x36363636)
        for word in range(_BLOCK_WORDS):
            for lane in range(_LANES):
                has = key[word, lane] if word < _STATE_WORDS else np.uint32(0)
                block[word, lane] = has ^ pad
                if turn and word < _STATE_WORDS:
                    message[word, lane] = state[word, lane]
                elif turn:
                    message[word, lane] = _behind_32_bytes(word)
        for word in range(_STATE_WORDS):
            for lane in range(_LANES):
                state[word, lane] = _IV[word]
        _compress(state, block)
        _compress(state, message)


@compiled()
def _behind_32_bytes(word: int) -> Any:
    """Return words 9 to 16 of a second block that holds 32 bytes."""
    if word == _STATE_WORDS:
        return np.uint32(1 << 31)
    return np.uint32((4 * _BLOCK_WORDS + KEY_BYTES) * 8 if word == _BLOCK_WORDS - 1 else 0)


@compiled()
def _word(data: Uint8s, at: int) -> Any:
    """Read four bytes, the highest first."""
    word = np.uint32(0)
    for i in range(4):
        word = np.uint32(word << np.uint32(8)) | np.uint32(data[at + i])
    return word


@compiled()
def _derive(salt: Uint8s, secrets: Uint8s, label: Uint8s, ends: Int64s, derived: Uint8s) -> None:
    """Derive all rows, sixteen at a time. Lanes after the last row repeat the last row."""
    key = np.empty((_STATE_WORDS, _LANES), np.uint32)
    state = np.empty((_STATE_WORDS, _LANES), np.uint32)
    message = np.empty((_BLOCK_WORDS, _LANES), np.uint32)
    block = np.empty((_BLOCK_WORDS, _LANES), np.uint32)
    info, count, rows = np.zeros(4 * _BLOCK_WORDS, np.uint8), len(label), len(secrets)
    for i in range(count):
        info[i] = label[i]
    size = count + _ENDS_BYTES + 1
    info[size - 1], info[size] = 1, 0x80
    bits = 8 * (4 * _BLOCK_WORDS + size)
    info[-2], info[-1] = bits >> 8, bits & 255
    for start in range(0, rows, _LANES):
        for lane in range(_LANES):
            row = min(start + lane, rows - 1)
            for word in range(_STATE_WORDS):
                key[word, lane] = _word(salt, 4 * word)
                message[word, lane] = _word(secrets[row], 4 * word)
                message[_STATE_WORDS + word, lane] = _behind_32_bytes(_STATE_WORDS + word)
        _hmac(key, message, state, block)
        for lane in range(_LANES):
            row = min(start + lane, rows - 1)
            for i in range(_ENDS_BYTES):
                info[count + i] = (ends[row, i // 8] >> (8 * (i % 8))) & 255
            for word in range(_STATE_WORDS):
                key[word, lane] = state[word, lane]
            for word in range(_BLOCK_WORDS):
                message[word, lane] = _word(info, 4 * word)
        _hmac(key, message, state, block)
        for lane in range(min(_LANES, rows - start)):
            for i in range(KEY_BYTES):
                shift = np.uint32(24 - 8 * (i % 4))
                derived[start + lane, i] = (state[i // 4, lane] >> shift) & np.uint32(255)


def derived(label: bytes, locks: Sequence[tuple[bytes, bytes, int, int]]) -> list[bytes]:
    """Derive keys as `Pairs.derived` does, for locks of one view."""
    secrets = np.frombuffer(b"".join(lock[0] for lock in locks), np.uint8).reshape(-1, KEY_BYTES)
    salt, name = np.frombuffer(locks[0][1], np.uint8), np.frombuffer(label, np.uint8)
    ends = np.array([lock[2:] for lock in locks], np.int64)
    out = np.empty(secrets.shape, np.uint8)
    _derive(salt, secrets, name, ends, out)
    return as_keys(out)

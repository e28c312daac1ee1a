"""The only source of randomness.

Everything random in fedveil is drawn from an `Entropy`: an AES-256-CTR keystream with exact
samplers. `Secure` takes its key from the operating system. It is the only choice if a report really
leaves a client. `Seeded` derives its key from the job's seed and the words that name the stream. So
a simulation is reproducible to the byte, no matter which process runs which part and in which
order. The run's record says if it used `Seeded`.

Exactness: a sampler has exactly the stated distribution for the given floating-point probability,
with no additive error. If 64 random bits do not decide a draw, more are used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedveil.base.array_types import Array, Bools, Int64s, Uint64s
from fedveil.base.keystream import MOST_AT_ONCE, Keystream
from fedveil.base.validate import integer, within
from fedveil.errors import InvalidValue

_KEY_BYTES = 32
# A stream starts with a small block, since most streams are read for a few bytes.
_FIRST_BLOCK_BYTES = 1 << 9
_LAST_BLOCK_BYTES = MOST_AT_ONCE
# Longer reads are written without an intermediate buffer.
_DIRECTLY_BYTES = 1 << 11
_WORD = 64
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


# A forked child has a copy of its parent's keystream, so both would continue with the same bytes.
os.register_at_fork(after_in_child=_count_fork)


class Entropy(ABC):
    """A source of random bytes (a keystream), with samplers whose distributions are exact.

    Not safe to share between threads.
    """

    #: The name of this source in a run's record and report.
    description: str

    def __init__(self) -> None:
        # Many streams only create other streams, so the cipher is created with the first byte.
        self._forks = _forks
        self._cipher: Keystream | None = None
        self._block = self._position = 0
        self._buffer = memoryview(b"")

    @abstractmethod
    def _fresh_key(self) -> bytes:
        """Return the stream's key. Called before the first byte, and again in a forked child."""

    @abstractmethod
    def stream(self, *path: int | str) -> Entropy:
        """Return an independent source for the purpose that `path` names."""

    @property
    def _keystream(self) -> Keystream:
        if self._cipher is None:
            self._cipher = Keystream(self._fresh_key())
        return self._cipher

    def _refill(self) -> None:
        if self._block < _LAST_BLOCK_BYTES:
            self._block = min(max(8 * self._block, _FIRST_BLOCK_BYTES), _LAST_BLOCK_BYTES)
            self._buffer = memoryview(bytearray(self._block + 15))
        self._keystream.write(self._buffer, self._block)
        self._position = 0

    def _fill_directly(self, target: memoryview) -> int:
        """Write keystream to the beginning of `target`, without a copy through the buffer.

        Returns the number of bytes written. If `target` is long, only a short rest at its end is
        left. If it is short, the result is 0. Some bytes of the rest may be overwritten.
        """
        done = 0
        while (left := len(target) - done) > _DIRECTLY_BYTES:
            count = min(left - 15, _LAST_BLOCK_BYTES) // 16 * 16
            self._keystream.write(target[done : done + count + 15], count)
            done += count
        if done:  # a small block for the rest, or the next large read would come from the buffer
            self._block = self._position = 0
        return done

    def _after_fork(self) -> None:
        Entropy.__init__(self)

    def fill(self, out: Array | bytearray | memoryview) -> None:
        """Overwrite a contiguous buffer with keystream."""
        if self._forks != _forks:
            self._after_fork()
        if isinstance(out, np.ndarray) and out.size == 0:
            return
        target = (out.data if isinstance(out, np.ndarray) else memoryview(out)).cast("B")
        done, size = 0, len(target)
        while done < size:
            if self._position == self._block:
                done += self._fill_directly(target[done:])
                if done == size:
                    return
                self._refill()
            take = min(size - done, self._block - self._position)
            target[done : done + take] = self._buffer[self._position : self._position + take]
            self._position += take
            done += take

    def token(self, size: int) -> bytes:
        out = bytearray(size)
        self.fill(out)
        return bytes(out)

    def words(self, count: int) -> Uint64s:
        """Return `count` independent uniform 64-bit words."""
        out = np.empty(count, np.uint64)
        self.fill(out)
        return out

    def integers(self, high: int, count: int) -> Int64s:
        """Return `count` independent integers, uniform on 0..high-1.

        Each is a random 64-bit word modulo `high`. Let m be the largest multiple of `high` that is
        at most 2^64. Words from m on are rejected, so the distribution is exactly uniform. This
        rejects less than half of all words. (Lemire's multiplication would need 128-bit products.)
        """
        high = integer("high", high, 1, 1 << 63)
        limit = (1 << _WORD) - (1 << _WORD) % high
        out = np.empty(count, np.int64)
        done = 0
        while done < count:
            words = self.words(count - done)
            if limit < 1 << _WORD:
                words = words[words < np.uint64(limit)]
            out[done : done + len(words)] = (words % np.uint64(high)).astype(np.int64)
            done += len(words)
        return out

    def integer(self, high: int) -> int:
        """Return one integer, uniform on 0..high-1, for any positive `high`."""
        high = integer("high", high, 1)
        bits = (high - 1).bit_length()
        size = (bits + 7) // 8
        while True:
            value = int.from_bytes(self.token(size), "little") >> (8 * size - bits)
            if value < high:
                return value

    def bernoulli(self, p: float, shape: int | Sequence[int]) -> Bools:
        """Return independent bits that are 1 with probability exactly `p`, a floating-point number.

        A uniform real in [0, 1) is read 64 bits at a time and compared with the binary expansion of
        p. The expansion is finite, so the comparison ends.
        """
        p = within("p", p, 0, 1)
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        if p == 1:
            return np.ones(size, np.bool_)
        digits, first = _expansion(p)
        words = self.words(math.prod(size)).reshape(size)
        out = words < np.uint64(first)
        for index in np.flatnonzero(words == np.uint64(first)):
            out.flat[index] = self._below(digits)
        return out

    def _below(self, digits: Sequence[int]) -> bool:
        """Return True if the next random 64-bit words are below `digits`, in lexicographic order.

        `digits` are the words of a probability's binary expansion that are not compared yet.
        """
        for digit in digits:
            word = int.from_bytes(self.token(8), "little")
            if word != digit:
                return word < digit
        return False

    def permutation(self, count: int) -> Int64s:
        """Return a uniform permutation of 0..count-1.

        Every element gets an independent 128-bit key, and the keys are sorted. If two keys are
        equal, all are drawn again, so that the distribution is exactly uniform.
        """
        while True:
            keys = self.words(2 * count).reshape(2, count)
            order = np.argsort(keys[1])
            if (np.diff(keys[1, order]) == 0).any():  # rare: each has 64 bits
                order = np.lexsort(keys)
                sorted_keys = keys[:, order]
                if (sorted_keys[:, 1:] == sorted_keys[:, :-1]).all(axis=0).any():
                    continue
            return order.astype(np.int64)

    def generator(self) -> np.random.Generator:
        """Return a NumPy generator seeded from this stream, for values that stay on the machine."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.token(16), "little")))


class Secure(Entropy):
    """The operating system's randomness, extended by AES-256-CTR.

    It cannot be repeated, copied or stored. A forked child gets a new key.

        >>> from fedveil.entropy import Secure
        >>> len(Secure().token(12))
        12
    """

    description = "operating-system randomness"

    def _fresh_key(self) -> bytes:
        return os.urandom(_KEY_BYTES)

    def stream(self, *path: int | str) -> Secure:
        """Return a source with a new key. `path` only documents the purpose."""
        return Secure()

    def __reduce__(self) -> Any:
        raise TypeError("Secure randomness cannot be copied: create a new one instead")


class Seeded(Entropy):
    """A keystream whose key comes from a seed and a path of words. Equal inputs give equal bytes.

    For simulation only. A forked child continues with the same bytes, which keeps a run
    reproducible. Parts of a run use separate streams, made by `stream`.

        >>> from fedveil.entropy import Seeded
        >>> noise = Seeded(7, "client", 3).stream("noise")
        >>> noise.token(8) == Seeded(7, "client", 3, "noise").token(8)
        True
    """

    description = "simulation randomness"

    def __init__(self, seed: int, *path: int | str) -> None:
        self.seed = integer("seed", seed, 0)
        for word in path:
            if isinstance(word, bool) or not isinstance(word, int | str):
                raise InvalidValue(f"path holds {word!r}; only whole numbers and words are allowed")
        self.path = path
        super().__init__()

    def _fresh_key(self) -> bytes:
        name = json.dumps(["fedveil seeded stream", self.seed, *self.path])
        return hashlib.sha256(name.encode()).digest()

    def _after_fork(self) -> None:
        self._forks = _forks

    def stream(self, *path: int | str) -> Seeded:
        """Return a new source, in which `path` is appended to this source's path."""
        return Seeded(self.seed, *self.path, *path)

    def __reduce__(self) -> Any:
        return Seeded, (self.seed, *self.path)


def _expansion(p: float) -> tuple[list[int], int]:
    """Return the binary expansion of a probability p in [0, 1), cut into words of 64 bits.

    The result is a pair: a list of all words after the first, and the first word.
    """
    numerator, denominator = p.as_integer_ratio()
    places = denominator.bit_length() - 1
    count = max(1, -(-places // _WORD))
    scaled = numerator << (count * _WORD - places)
    digits = [(scaled >> (_WORD * i)) & ((1 << _WORD) - 1) for i in reversed(range(count))]
    return digits[1:], digits[0]


def source(entropy: object) -> Entropy:
    """Return `entropy`. Raises `InvalidValue` unless it is an `Entropy`."""
    if not isinstance(entropy, Entropy):
        raise InvalidValue(
            f"entropy = {entropy!r} is no source of randomness: use fedveil.entropy.Secure()"
        )
    return entropy


def seed_libraries(seed: int) -> None:
    """Seed the global generators of NumPy and Python, from which a user's own code may draw.

    fedveil itself draws nothing from them.
    """
    np.random.seed(seed % (1 << 32))  # noqa: NPY002  # own code calls np.random itself
    random.seed(seed)


@contextmanager
def libraries_restored() -> Iterator[None]:
    """A context that restores NumPy's and Python's global generators at its end."""
    states = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(states[0])  # noqa: NPY002
        random.setstate(states[1])

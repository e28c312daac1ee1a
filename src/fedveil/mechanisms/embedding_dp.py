"""EmbeddingDP: each value of an embedding becomes one bit, flipped by randomised response."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np

from fedveil.base.array_types import Array, Float32s, Int64s, Uint8s
from fedveil.base.packing import packed_size
from fedveil.base.validate import integer, within
from fedveil.entropy import Entropy, Secure, source
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact.biased_bits import byte_tables, double_above_q
from fedveil.mechanisms.report_memory import ReportMemory
from fedveil.mechanisms.tensor_kinds import same_kind, values_of
from fedveil.privacy.compose import plain_sum
from fedveil.privacy.guarantee_strength import epsilon_text
from fedveil.privacy.loss import PrivacyLoss, as_written, format_epsilon, rounded_up
from fedveil.privacy.loss_distribution import LossDistribution

Packed = Uint8s
Tensor = TypeVar("Tensor")

#: For a larger eps, e^(-eps/2) is not a normal double-precision number.
MAX_EPS = 1400.0
#: Values processed at a time: a multiple of 8 that fits in the cache.
_BLOCK = 1 << 16


class EmbeddingDP:
    """Quantises every value to one bit, and flips the bit by randomised response.

    Output: a value x becomes the bit B = 1 if x > 0, else B = 0. Then each bit is independently
    sent as 1 with probability

        p = e^(eps/2) / (e^(eps/2) + 1)   if B = 1
        q = 1 / (e^(eps/2) + 1)           if B = 0

    q is rounded up to a double, and p = 1 - q. The bits have exactly these two probabilities. eps =
    0 gives p = q = 1/2, pure noise. eps = None sends B itself, without any guarantee.

    Privacy, at delta = 0, for one release:

        eps/2        if one value is replaced (per bit)
        eps          if a one-hot row is replaced by another, which changes two bits
        m · eps/2    if a vector of m values is replaced

    The losses of an example's releases add up, but repeating its first release is free (`bits_of`).
    If the layers that compute the values were trained on an example, the bits of other examples
    also reveal something about it. The stated losses do not cover this.

    Source: MindSpore Federated's document on EmbeddingDP, "scheme", steps 1 and 2. The document
    states eps for a one-hot row. Here all real values are allowed.

        >>> import numpy as np
        >>> from fedveil.entropy import Seeded
        >>> from fedveil.mechanisms import EmbeddingDP
        >>> protection = EmbeddingDP(eps=6.0)
        >>> sent = protection(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), Seeded(1))
        >>> sent.shape, sorted(set(sent.ravel().tolist()))
        ((3, 4), [0.0, 1.0])
        >>> protection.loss.per_vector(4).epsilon  # the four values of an example
        12.0
    """

    def __init__(self, eps: float | None = None) -> None:
        self.eps = None if eps is None else within("eps", eps, 0, MAX_EPS)
        self.loss = EmbeddingLoss(self.eps)

    def __call__(self, tensor: Tensor, entropy: Entropy | None = None) -> Tensor:
        """Return the perturbed bits of `tensor` as 0 and 1, with its type, shape and dtype.

        `tensor` is a NumPy array, a torch tensor or a MindSpore Tensor of any shape. The result has
        no gradients. Without `entropy`, secure randomness is used. Raises `InvalidValue` on NaN.
        """
        values = values_of("tensor", tensor)
        spread = np.empty(values.shape, values.dtype)
        _unpack_into(self.bits(values, entropy), spread.reshape(-1))
        result: Tensor = same_kind(tensor, spread)
        return result

    def bits(self, values: Array, entropy: Entropy | None = None) -> Packed:
        """Return the perturbed bits of `values` in C order, eight per byte, lowest bit first.

        Without `entropy`, secure randomness is used.
        """
        flat = values_of("values", values).reshape(-1)
        packed = _quantised(flat)
        if self.eps is not None and len(packed):
            flips = self._flips(len(packed), Secure() if entropy is None else source(entropy))
            spare = -len(flat) % 8
            flips[-1] &= 0xFF >> spare
            packed ^= flips
        return packed

    def bits_of(
        self,
        keys: Sequence[int | str] | Array,
        values: Array,
        entropy: Entropy | None,
        memory: ReportMemory,
    ) -> Packed:
        """Return the packed, perturbed bits of examples, drawn only once for each example.

        `values` has one example per row, and `keys` has each example's number or id. If a key was
        used before, the result repeats the bits that `memory` has stored for it, and does not read
        `values`. This costs no privacy. The memory's `width` must be the number of bytes of one
        example: its number of values / 8, rounded up. If `entropy` is None, secure randomness is
        used.
        """
        rows = values_of("values", values)
        if rows.ndim == 0 or len(keys) != len(rows):
            raise InvalidValue(f"values has shape {rows.shape}, {len(keys)} rows are needed")
        size = math.prod(rows.shape[1:])
        if memory.width != packed_size(size, 1):
            raise InvalidValue(
                f"memory holds {memory.width} bytes an example, {packed_size(size, 1)} are needed"
            )

        def draw(places: Int64s) -> Packed:
            packed = self.bits(rows[places], entropy)
            bits = np.unpackbits(packed, count=len(places) * size, bitorder="little")
            return np.packbits(bits.reshape(len(places), size), axis=1, bitorder="little")

        reports = memory.reports(keys, draw)
        bits = np.unpackbits(reports, axis=1, count=size, bitorder="little")
        return np.packbits(bits.reshape(-1), bitorder="little")

    @staticmethod
    def unpack(packed: Packed, shape: Sequence[int]) -> Float32s:
        """Return the bits in `packed` as an array of 0.0 and 1.0 with the given `shape`.

        Raises `InvalidValue` if `packed` is not of dtype uint8, has the wrong length for `shape`,
        or has a 1 after the last bit.
        """
        out = np.empty(tuple(integer("shape", size, 0) for size in shape), np.float32)
        if packed.dtype != np.uint8 or packed.shape != (packed_size(out.size, 1),):
            raise InvalidValue(
                f"packed has dtype {packed.dtype} and shape {packed.shape}, uint8 of shape "
                f"{(packed_size(out.size, 1),)} is needed"
            )
        if len(packed) and int(packed[-1]) >> (8 - -out.size % 8):
            raise InvalidValue(f"packed holds a 1 behind its {out.size} bits")
        _unpack_into(packed, out.reshape(-1))
        return out

    def _flips(self, count: int, entropy: Entropy) -> Packed:
        """Return `count` bytes of independent bits, each 1 with the probability of a flip."""
        assert self.eps is not None
        flips = np.empty(count, np.uint8)
        q = _lie_probability(self.eps)
        if q == Fraction(1, 2):
            entropy.fill(flips)
        else:
            byte_tables(q).draw_from(0, entropy, flips)
        return flips


@dataclass(frozen=True)
class EmbeddingLoss:
    """The privacy loss of one release of EmbeddingDP.

    It depends on the input that is replaced: one value (`per_bit`), a one-hot row (`per_row`) or a
    whole vector (`per_vector`). It is infinite if `eps` is None, because the bits are then not
    flipped.
    """

    eps: float | None

    @property
    def per_bit(self) -> PrivacyLoss:
        """Return the loss if one value, which is sent as one bit, is replaced: eps/2."""
        if self.eps is None:
            return PrivacyLoss(math.inf, per="bit")
        return PrivacyLoss(_half(self.eps), per="bit", release=BitRelease(self.eps))

    @property
    def per_row(self) -> PrivacyLoss:
        """Return the loss if a one-hot row is replaced by another: eps."""
        whole = math.inf if self.eps is None else self.eps
        return PrivacyLoss(whole, per="row", part=self.per_bit)

    def per_vector(self, values: int) -> PrivacyLoss:
        """Return the loss if a whole vector of `values` values is replaced: values · eps/2."""
        values = integer("values", values, 1)
        whole = math.inf if self.eps is None else plain_sum([(_half(self.eps), values)])
        return PrivacyLoss(whole, per="vector", part=self.per_bit)

    def charges(self, values: int) -> list[tuple[PrivacyLoss, int]]:
        """Return the cost of one release of n = `values` numbers, for a ledger: [(per_bit, n)].

        The pair says that n bits are released, each with the loss `per_bit`. At a positive delta, a
        ledger composes these losses to far less than their sum.
        """
        return [(self.per_bit, integer("values", values, 1))]

    def __str__(self) -> str:
        if self.eps is None:
            return "epsilon inf (none): one-bit quantisation without noise promises nothing"
        bit = _half(self.eps)
        return (
            f"epsilon {epsilon_text(bit)} per bit, {epsilon_text(self.eps)} per one-hot row, "
            f"m * {format_epsilon(bit)} per vector of m values"
        )


@dataclass(frozen=True)
class BitRelease:
    """Describes the release of one bit by EmbeddingDP, so that a ledger can compose many bits."""

    eps: float

    def distribution(self) -> LossDistribution:
        """Return the privacy-loss distribution of one bit that `EmbeddingDP` perturbs."""
        return _distribution(self.eps)


def _half(eps: float) -> float:
    return rounded_up(as_written(eps) / 2)


@lru_cache(maxsize=64)
def _lie_probability(eps: float) -> Fraction:
    return min(Fraction(1, 2), Fraction(double_above_q(eps, bits=2)))


@lru_cache(maxsize=32)
def _distribution(eps: float) -> LossDistribution:
    q = _lie_probability(eps)
    law = [float(1 - q), float(q)]
    return LossDistribution.from_laws([law, law[::-1]], _half(eps))


def _quantised(flat: Array) -> Packed:
    packed = np.empty(packed_size(len(flat), 1), np.uint8)
    above = np.empty(min(len(flat), _BLOCK), np.bool_)
    for begin in range(0, len(flat), _BLOCK):
        block = flat[begin : begin + _BLOCK]
        if flat.dtype.kind == "f" and np.isnan(block).any():
            at = begin + int(np.isnan(block).argmax())
            raise InvalidValue(f"value {at} of {len(flat)} is NaN, real numbers are needed")
        bits = np.packbits(np.greater(block, 0, out=above[: len(block)]), bitorder="little")
        packed[begin // 8 : begin // 8 + len(bits)] = bits
    return packed


def _unpack_into(packed: Packed, out: Array) -> None:
    for begin in range(0, len(out), _BLOCK):
        block = out[begin : begin + _BLOCK]
        part = packed[begin // 8 : begin // 8 + packed_size(len(block), 1)]
        block[:] = np.unpackbits(part, count=len(block), bitorder="little")

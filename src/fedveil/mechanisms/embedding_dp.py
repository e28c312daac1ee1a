"""EmbeddingDP: one bit of every value of an embedding, told truthfully or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np

from fedveil._arrays import Array, Float32s, Int64s, Uint8s
from fedveil._validate import integer, within
from fedveil.entropy import Entropy, Secure
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact.biased_bits import byte_tables, double_above_q
from fedveil.mechanisms.report_memory import ReportMemory
from fedveil.mechanisms.tensor_kinds import same_kind, values_of
from fedveil.packing import packed_size
from fedveil.privacy.compose import plain_sum
from fedveil.privacy.loss import PrivacyLoss, as_written, format_epsilon, rounded_up
from fedveil.privacy.loss_distribution import LossDistribution
from fedveil.privacy.promise import told

Packed = Uint8s
Tensor = TypeVar("Tensor")

#: Above it e^(-eps/2) leaves the range of normal double-precision numbers.
MAX_EPS = 1400.0
#: Values that are worked on at once; a multiple of 8 that stays in the cache.
_BLOCK = 1 << 16


class EmbeddingDP:
    """Quantise every value to one bit and answer for it by randomised response.

    Output: a value x becomes the bit B = 1 where x > 0 and B = 0 elsewhere, and then, every bit
    independently, 1 with probability
        p = e^(eps/2) / (e^(eps/2) + 1)   where B = 1
        q = 1 / (e^(eps/2) + 1)           where B = 0
    q is rounded up to a double and p = 1 - q; with these two numbers the law is exact.
    eps = 0 makes p = q = 1/2: pure noise. eps = None sends B itself, and nothing is promised.

    Privacy, pure, replace-one, for one release:
        eps/2        per bit: one value changes at will
        eps          per one-hot row: two one-hot rows differ in two bits
        m · eps/2    per vector of m values
    so that the source's eps is that of a one-hot row. Further releases of an example add up,
    unless what was drawn for it is remembered (`bits_of`).

    Source: 003, "scheme", steps 1 and 2. Its text allows one-dimensional inputs of 0 and 1 and
    two-dimensional one-hot rows alone, its example passes neither: any real values are taken.
    """

    def __init__(self, eps: float | None = None) -> None:
        self.eps = None if eps is None else within("eps", eps, 0, MAX_EPS)
        self.loss = EmbeddingLoss(self.eps)

    def __call__(self, tensor: Tensor, entropy: Entropy | None = None) -> Tensor:
        """The bits of `tensor` as 0 and 1, of its kind, shape and dtype; outside any graph.

        `tensor` is a NumPy array, a torch tensor or a MindSpore Tensor of any shape. Secure
        randomness is drawn where no `entropy` is given. Raises InvalidValue on NaN.
        """
        values = values_of("tensor", tensor)
        spread = np.empty(values.shape, values.dtype)
        _unpack_into(self.bits(values, entropy), spread.reshape(-1))
        result: Tensor = same_kind(tensor, spread)
        return result

    def bits(self, values: Array, entropy: Entropy | None = None) -> Packed:
        """The bits of `values` in C order, eight a byte, the first one lowest, zeros at the end.

        This is what leaves a party: 1/32 of the bytes of float32.
        """
        flat = values_of("values", values).reshape(-1)
        packed = _quantised(flat)
        if self.eps is not None and len(packed):
            flips = self._flips(len(packed), Secure() if entropy is None else entropy)
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
        """As `bits`, an example a row of `values`; what was drawn for a key is given again.

        An example then pays once, also if its values have changed since: they are not looked at.
        The memory's width is `packed_size` of one example's bits.
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
        """What `bits` packed, as 0.0 and 1.0; raises InvalidValue where it is no packing of it."""
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
        """Eight independent bits a byte, each 1 with probability q."""
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
    """What one release of EmbeddingDP costs, by what of the input changes."""

    eps: float | None

    @property
    def per_bit(self) -> PrivacyLoss:
        """eps/2, for one value; composes by the law of the bit itself."""
        if self.eps is None:
            return PrivacyLoss(math.inf, per="bit")
        return PrivacyLoss(_half(self.eps), per="bit", release=BitRelease(self.eps))

    @property
    def per_row(self) -> PrivacyLoss:
        """eps, for a one-hot row: two of its bits change."""
        whole = math.inf if self.eps is None else self.eps
        return PrivacyLoss(whole, per="row", part=self.per_bit)

    def per_vector(self, values: int) -> PrivacyLoss:
        """values · eps/2, for a whole vector. For a ledger, which adds up more, see `charges`."""
        values = integer("values", values, 1)
        whole = math.inf if self.eps is None else plain_sum([(_half(self.eps), values)])
        return PrivacyLoss(whole, per="vector", part=self.per_bit)

    def charges(self, values: int) -> list[tuple[PrivacyLoss, int]]:
        """What a ledger records for an example, each time that its `values` values are released.

        One loss for each bit: with a delta their sum is far below values · eps/2.
        """
        return [(self.per_bit, integer("values", values, 1))]

    def __str__(self) -> str:
        if self.eps is None:
            return "epsilon inf (none): one-bit quantisation without noise promises nothing"
        bit = _half(self.eps)
        return (
            f"epsilon {told(bit)} per bit, {told(self.eps)} per one-hot row, "
            f"m * {format_epsilon(bit)} per vector of m values"
        )


@dataclass(frozen=True)
class BitRelease:
    """One bit of EmbeddingDP, for the ledger to compose."""

    eps: float

    def distribution(self) -> LossDistribution:
        """The privacy-loss distribution of randomised response with q."""
        return _distribution(self.eps)


def _half(eps: float) -> float:
    return rounded_up(as_written(eps) / 2)


@lru_cache(maxsize=64)
def _lie_probability(eps: float) -> Fraction:
    return min(Fraction(1, 2), Fraction(double_above_q(eps / 2)))


@lru_cache(maxsize=32)
def _distribution(eps: float) -> LossDistribution:
    q = _lie_probability(eps)
    law = [float(1 - q), float(q)]
    return LossDistribution.from_laws([law, law[::-1]], eps / 2)


def _quantised(flat: Array) -> Packed:
    """Bit i is 1 where value i is above 0."""
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
    """Overwrite `out` with the bits, one a value."""
    for begin in range(0, len(out), _BLOCK):
        block = out[begin : begin + _BLOCK]
        part = packed[begin // 8 : begin // 8 + packed_size(len(block), 1)]
        block[:] = np.unpackbits(part, count=len(block), bitorder="little")

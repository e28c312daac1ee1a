"""Gaussian noise in shares: each client adds a small part of the noise that the sum needs."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from fedveil.base import reused_memory
from fedveil.base.array_types import Array, Float32s, Float64s, Int8s, Int64s, Signed, into_floats
from fedveil.base.validate import finite_vector, integer, positive, real_vector, within
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact.discrete_gaussian import DiscreteGaussian
from fedveil.mechanisms.gaussian import SLACK, SMOOTHING, stretch
from fedveil.mechanisms.hadamard import padded_length, unrotate, walsh_hadamard
from fedveil.mechanisms.vector_rounding import (
    round_at_random,
    round_towards_zero,
    scale,
    scale_with_signs,
)
from fedveil.privacy.grid_sensitivity import LARGEST, grid_step, to_grid

#: Headroom of a rotated entry, in root mean squares. It is exceeded with probability 2 exp(-32),
#: and the entry then still lies in the ring.
_PEAK = 8
#: Largest probabilities that a vector is rounded again, and that a sum wraps around.
_AGAIN, _WRAPS = math.ldexp(1, -20), math.ldexp(1, -40)
_TRIES = 8
#: Entries rounded at a time: few enough for a core's own cache.
_PART = 1 << 15
#: Blocks of a rotation have at least 2^10 entries, unless the vector has fewer.
_LEAST_EXPONENT = 10
#: Headroom of a ring beyond the largest honest sum, as a share of that sum.
_BAND = 0.25
#: Limits that keep draws and squares within 64-bit integers.
_MOST_SHARE_VARIANCE, _MOST_LIMIT = 1 << 54, 1 << 60


class NoiseShares:
    """Shares of Gaussian noise, in units of a grid step. Each client adds one share to its vector.

    A subclass protects a part of each client's vector: either the whole vector, or one contribution
    to it. The arguments of the constructor determine the size of a share:

    - `limit` is the largest squared L2 norm of the protected part, in steps².
    - `square` is the squared sensitivity of a sum of vectors, in steps². The sensitivity is the
      largest distance by which the sum moves if one protected part is replaced. Default: 4 ·
      `limit`.
    - `shares` and `clients` are the smallest and the largest number of vectors in a sum.
    - `ratio` is the least noise: the standard deviation of the noise in a sum of `shares` vectors
      is at least `ratio` times the sensitivity. A sum of more vectors has more noise.

    Subclasses set `reach`, the largest magnitude to expect in an entry of a sum, in steps.
    """

    #: An entry of an honest sum exceeds this with probability at most 2^-40.
    reach: int

    def __init__(
        self, ratio: float, limit: int, *, shares: int, clients: int, square: int | None = None
    ) -> None:
        ratio = positive("ratio", ratio)
        self.clients = integer("clients", clients, 1)
        self.least_shares = integer("shares", shares, 1, clients)
        self.limit = limit
        #: The squared sensitivity of a sum, in steps².
        self.square = 4 * limit if square is None else square
        least = Fraction(ratio) ** 2 * self.square * (1 + SLACK) + SMOOTHING
        share = max(least / self.least_shares, Fraction(SMOOTHING))
        if share > _MOST_SHARE_VARIANCE or limit > _MOST_LIMIT:
            raise InvalidValue(
                f"ratio = {ratio:g} and a clip of {math.sqrt(limit):.3g} steps need shares of "
                f"noise of {math.sqrt(share):.3g} steps: fewer entry_bits are needed"
            )
        self._noise = DiscreteGaussian.at_least(share)

    @property
    def share_variance(self) -> int:
        """Return the parameter s² of a share's discrete Gaussian distribution, in steps²."""
        return self._noise.variance

    def ratio(self, shares: int) -> float:
        """Return the standard deviation of the sum of `shares` shares, divided by the sensitivity.

        The result is slightly smaller than the exact value: the sum is at least as private as with
        continuous Gaussian noise of this ratio.
        """
        shares = integer("shares", shares, 1)
        variance = (shares * self.share_variance - SMOOTHING) / (1 + float(SLACK))
        return math.sqrt(variance / self.square) * (1 - 2.0**-50)

    def add_share(self, numbers: Signed, entropy: Entropy) -> None:
        """Add one share of the noise to a client's vector `numbers`, in place."""
        self._noise.add_to(numbers, entropy)

    def out_of_reach(self, total: Int64s) -> bool:
        """Return True if an entry of the sum `total` is above `reach` in magnitude.

        A sum of honest clients' vectors has such an entry with probability at most 2^-40. So the
        sum has probably wrapped around, or a client has not followed the protocol.
        """
        return bool(max(int(total.max(initial=0)), -int(total.min(initial=0))) > self.reach)


class DistributedGaussian(NoiseShares):
    """Clips, rotates and rounds vectors, and adds a share of noise to each. Their sum is private.

    A vector x of `dimension` entries becomes `share(x) = z + N`, whole numbers in units of `step`:

    1. x is shortened to the L2 norm `clip` if it is longer. With `rotation` it is padded with zeros
       to `length` entries and rotated in blocks of `block` entries (`hadamard.rotate`). The
       rotation's signs are public.
    2. Each entry of x / step, computed in float32, is rounded up or down at random to a whole
       number, whose expected value is the entry to within 2^-32. This gives z. Privacy needs the
       bound Σ z² <= `limit`. If z exceeds it, which has probability at most 2^-20, all entries are
       rounded again. After eight attempts all entries are rounded towards zero.
    3. The entries of N are independent discrete Gaussians with parameter `share_variance`. They are
       drawn exactly and do not depend on x.

    Privacy: if one whole vector is replaced, the sum of m shares has at most the privacy loss of
    `Gaussian(ratio(m))`, Gaussian noise whose standard deviation is `ratio(m)` times the
    sensitivity. This holds whatever the other vectors are, and for the sum modulo 2^bits too. m
    counts only honest clients: an attacker who makes a share knows its noise and can subtract it.

    Wrapping: sums are computed modulo 2^bits. The sum of at most `clients` honest shares wraps
    around with probability at most 2^-40. The probability can be higher if clients know the round's
    signs when they choose their vectors. Privacy does not depend on it.

    `entry_bits` sets the step. With `rotation`, 2^entry_bits steps cover the range from -8 r to 8
    r, where r = clip / √length is the root mean square of the entries of a rotated vector of norm
    `clip`. Without rotation, they cover the range from -clip to clip.

    `apart`, a distance below 2 · clip, makes the sensitivity smaller, and so the noise. With it the
    caller promises that any two possible vectors of a client are at most `apart` from each other,
    and that every vector has a norm of at most clip · (1 - 2^-18). Nothing checks this promise.
    """

    # Sensitivity. Let n = length and ρ = clip / step. Rounding adds independent errors of variance
    # at most 1/4 to the entries of a vector of norm ρ. By proposition 22 of Kairouz, Liu and
    # Steinke (2021), Σ z² exceeds
    #
    #     limit = ⌊ρ² + n/4 + √(2 ln 2^20) · (ρ + √n / 2)⌋    (and at most (ρ + √n)²)
    #
    # with probability at most 2^-20. As every returned z has Σ z² <= limit in whole numbers, two z
    # are at most 2 √limit apart. With `apart`, they are at most apart / step + 2 √n + 2^-18 ρ
    # apart: each entry is rounded by less than a step, and the 32-bit sums in `rotate` err by less
    # than 2^-19 of a norm (2^-24 in each of at most 21 levels and a few products).
    #
    # Privacy. The sum is post-processing of Gaussian noise of ratio(m) = √((m · share_variance -
    # 16) / (1 + 2^-30)) / √square times the sensitivity √square, for two reasons:
    #
    # 1. exp(-y² / 2a) · exp(-(x - y)² / 2b) = exp(-x² / 2(a + b)) · exp(-(y - μ)² / 2v) with v = ab
    #    / (a + b). By Poisson summation, Σ_y exp(-(y - μ)² / 2v) is the same for all μ to within a
    #    factor of 1 ± 3 exp(-2π² v). Add one share after another: v >= 8, as share_variance >= 16.
    #    So the noise of m <= 2^20 shares has the distribution of one discrete Gaussian of parameter
    #    m · share_variance to within a factor e^(±η) with η = 1e-61 for each entry.
    # 2. That distribution is post-processing of continuous noise whose variance is smaller by 16
    #    (see steps 2 and 3 of the proof of `GaussianMechanism`). The share 2^-30 of the variance
    #    outweighs η.
    #
    # Wrapping. `bits` is the smallest number whose ring holds the sum with a quarter to spare. An
    # entry of the rotated sum is a sum with random signs of the B entries of a block no longer than
    # clients · ρ, divided by √B, plus rounding errors and noise. It is sub-Gaussian with variance
    # (clients · ρ)² / B + clients · (1/4 + share_variance), even if all of a sum is in one block.
    # Without rotation, clients · ρ bounds its first part.

    def __init__(
        self,
        clip: float,
        ratio: float,
        *,
        shares: int,
        clients: int,
        dimension: int,
        entry_bits: int = 8,
        rotation: bool = True,
        apart: float | None = None,
    ) -> None:
        self.clip = within("clip", clip, 2.0**-100, 2.0**100)
        self.dimension = integer("dimension", dimension, 1)
        self._entry_bits = integer("entry_bits", entry_bits, 4, 24)
        self.rotation = rotation
        if apart is not None:
            within("apart", apart, 0, 2 * self.clip, open_low=True)
        noise: Any = {"ratio": ratio, "shares": shares, "clients": clients, "apart": apart}
        sizes = []
        for block in _blocks(dimension) if rotation else [1]:
            self._set(block, **noise)
            sizes.append((self.length * self.bits, block))
        self._set(min(sizes)[1], **noise)

    def _set(
        self, block: int, ratio: float, shares: int, clients: int, apart: float | None
    ) -> None:
        self.block, self.length = block, -(-self.dimension // block) * block
        peak = math.sqrt(self.length) / _PEAK if self.rotation else 1.0
        self.radius = (1 << (self._entry_bits - 1)) * peak
        self.step = self.clip / self.radius
        limit, square = _limit(self.radius, self.length), None
        if apart is not None:
            rounding = 2 * math.sqrt(self.length) + 2.0**-18 * self.radius
            square = min(4 * limit, math.ceil((apart / self.step + rounding) ** 2))
        super().__init__(ratio, limit, shares=shares, clients=clients, square=square)
        self.reach = self._reach()
        self.bits = ring_bits(self.reach)

    def share(self, vector: Array, signs: Int8s | None, entropy: Entropy) -> Signed:
        """Return the clipped, rotated, rounded vector plus a share of noise, in units of `step`.

        `signs` are the signs of the rotation, or None without rotation.
        """
        numbers = self.rounded(vector, signs, entropy)
        self.add_share(numbers, entropy)
        return numbers

    def clipped(self, vector: Array) -> Float64s:
        """Return `vector`, shortened to the norm `clip` if it is longer. It is not rounded."""
        vector = np.ascontiguousarray(real_vector("update", vector), np.float32)
        factor = min(1.0, self.step * stretch(vector, self.radius))
        return vector * np.float64(factor)

    def rounded(self, vector: Array, signs: Int8s | None, entropy: Entropy) -> Signed:
        """Return the clipped, rotated and rounded vector in units of `step`, without noise.

        `signs` are the signs of the rotation, or None without rotation. The sum of the squares of
        the result is at most `limit`.
        """
        vector = np.ascontiguousarray(real_vector("update", vector), np.float32)
        factor = min(1 / self.step, stretch(vector, self.radius))
        kind = np.int32 if self.bits <= 32 else np.int64
        numbers: Signed = reused_memory.empty(self.length, kind)
        for _ in range(_TRIES):
            if self._round(vector, factor, signs, numbers, entropy) <= self.limit:
                return numbers
        while self._round(vector, factor, signs, numbers) > self.limit:
            factor *= 1 - 2.0**-20
        return numbers

    def _round(
        self,
        vector: Float32s,
        factor: float,
        signs: Int8s | None,
        numbers: Signed,
        entropy: Entropy | None = None,
    ) -> int:
        """Write factor * vector, rotated and rounded, to `numbers`. Returns Σ numbers².

        `factor` clips the vector and converts it to units of `step`. With `entropy`, entries are
        rounded at random, otherwise towards zero.
        """
        size = min(self.length, max(self.block, _PART))
        scaled, uniform = np.empty(size, np.float32), np.empty(size, np.uint32)
        factor *= self.block**-0.5 if self.rotation else 1
        total = 0
        for start in range(0, self.length, size):
            some = vector[start : start + size]
            part = scaled[: min(size, self.length - start)]
            part[len(some) :] = 0
            if self.rotation:
                assert signs is not None, "a rotation has signs"
                scale_with_signs(some, factor, signs[start : start + len(some)], part)
                walsh_hadamard(part, self.block)
            else:
                scale(some, factor, part)
            out = numbers[start : start + size]
            if entropy is None:
                total += round_towards_zero(part, out)
            else:
                entropy.fill(uniform[: len(part)])
                total += round_at_random(part, uniform, out)
        return total

    def mean(self, total: Int64s, shares: int, signs: Int8s | None) -> Float64s:
        """Return the mean of the vectors of n clients, where n is `shares`.

        `total` is the sum of what `share` returned for these vectors. It is in units of `step`, and
        is overwritten. `signs` are the signs of the rotation, or None without rotation.
        """
        values = into_floats(total)
        if self.rotation:
            assert signs is not None, "a rotation has signs"
            unrotate(values, signs, self.block)
        mean = values[: self.dimension]
        mean *= self.step / shares
        return mean

    def _reach(self) -> int:
        n, radius = self.clients, self.radius
        tail = math.sqrt(2 * math.log(2 * self.length / _WRAPS))
        spread = math.sqrt(n * (0.25 + self.share_variance))
        if self.rotation:
            return math.ceil(tail * math.hypot(n * radius / math.sqrt(self.block), spread))
        return math.ceil(n * radius + tail * spread)


class DistributedSum(NoiseShares):
    """Adds a share of the noise to each client's vector x, so that the sum of vectors is private.

    A client computes x from its examples. Each example contributes one clipped vector to x, and x
    itself is not clipped. A contribution changes x by a vector of L2 norm at most `clip`, whose
    entries are whole multiples of `step` (`privacy.grid_sensitivity`). x becomes `share(x) = z +
    N`. z is x / step, with entries limited to 2^24 in absolute value. The entries of N are
    independent discrete Gaussians with parameter `share_variance`.

    Privacy: if one contribution to one vector is replaced, the sum of m shares has at most the
    privacy loss of `Gaussian(ratio(m))`: Gaussian noise whose standard deviation is `ratio(m)`
    times the sensitivity. The ring of 2^bits numbers has room for every possible sum of `clients`
    vectors and for ordinary noise. So the sum wraps only if the noise is extreme.
    """

    # Why: limiting entries moves no two vectors further apart. The proof of `DistributedGaussian`
    # then applies with limit = ⌈(clip / step)²⌉.

    def __init__(
        self, clip: float, ratio: float, *, shares: int, clients: int, dimension: int
    ) -> None:
        self.clip = within("clip", clip, 2.0**-60, 2.0**60)
        self.dimension = self.length = integer("dimension", dimension, 1)
        self.step = grid_step(self.clip, dimension)
        limit = math.ceil((Fraction(self.clip) / Fraction(self.step)) ** 2)
        super().__init__(ratio, limit, shares=shares, clients=clients)
        tail = math.sqrt(2 * math.log(2 * dimension / _WRAPS))
        self.reach = clients * LARGEST + math.ceil(tail * math.sqrt(clients * self.share_variance))
        self.bits = ring_bits(self.reach)

    def share(self, vector: Array, signs: Int8s | None, entropy: Entropy) -> Int64s:
        """Return the vector in units of `step`, plus one share of noise. `signs` is ignored."""
        numbers = to_grid(finite_vector("update", vector), self.step)
        self.add_share(numbers, entropy)
        return numbers

    def mean(self, total: Int64s, shares: int, signs: Int8s | None) -> Float64s:
        return into_floats(total, self.step / shares)


def _blocks(dimension: int) -> list[int]:
    """Return the possible block lengths, powers of two, of a rotation of `dimension` entries."""
    most = padded_length(dimension).bit_length() - 1
    return [1 << exponent for exponent in range(min(_LEAST_EXPONENT, most), most + 1)]


def ring_bits(reach: int) -> int:
    """Return the number b of bits for sums that are computed modulo 2^b.

    2^b is large enough for all sums from -reach to reach, with 25% to spare.
    """
    return (2 * math.ceil(reach * (1 + _BAND))).bit_length()


def _limit(radius: float, length: int) -> int:
    spread = math.sqrt(-2 * math.log(_AGAIN)) * (radius + math.sqrt(length) / 2)
    return math.floor(min(radius**2 + length / 4 + spread, (radius + math.sqrt(length)) ** 2))

"""Gaussian noise in shares: every vector carries a little, and their sum carries all of it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from fedveil.base.array_types import (
    Array,
    Float32s,
    Float64s,
    Int8s,
    Int64s,
    Signed,
    Uint32s,
    into_floats,
)
from fedveil.base.kernels import compiled
from fedveil.base.validate import finite_vector, integer, positive, within
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact.discrete_gaussian import DiscreteGaussian
from fedveil.mechanisms.gaussian import SLACK, SMOOTHING, stretch
from fedveil.mechanisms.hadamard import padded_length, rotate, unrotate
from fedveil.privacy.grid_sensitivity import LARGEST, grid_step, to_grid

#: Headroom of a rotated entry, in root mean squares. It is exceeded with probability 2 exp(-32),
#: and the entry then still lies in the ring.
_PEAK = 8
#: Largest probabilities that a vector is rounded again, and that a sum wraps around.
_AGAIN, _WRAPS = math.ldexp(1, -20), math.ldexp(1, -40)
_TRIES = 8
#: Entries rounded at a time: few enough for a core's own cache.
_PART = 1 << 14
#: Headroom of a ring beyond the largest honest sum, as a share of that sum.
_BAND = 0.25
#: Limits that keep draws and squares within 64-bit integers.
_MOST_SHARE_VARIANCE, _MOST_LIMIT = 1 << 54, 1 << 60


class NoiseShares:
    """Shares of Gaussian noise, in whole steps, that clients add to their vectors before a sum.

    In a sum, `shares` of them add up to noise of `ratio` times the sensitivity √square, which is 2
    √limit if no square is given. `shares` is the least number of noisy vectors in a sum, and
    `clients` the largest number of vectors. Subclasses state how large a sum can become.
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
        """Return the parameter s² of one share's discrete Gaussian noise, in steps²."""
        return self._noise.variance

    def ratio(self, shares: int) -> float:
        """Return the standard deviation of the noise in a sum, divided by the sum's sensitivity.

        `shares` is the number of noise shares in the sum.
        """
        shares = integer("shares", shares, 1)
        variance = (shares * self.share_variance - SMOOTHING) / (1 + float(SLACK))
        return math.sqrt(variance / self.square) * (1 - 2.0**-50)

    def add_share(self, numbers: Signed, entropy: Entropy) -> None:
        """Add one client's share of the noise to its vector `numbers`, in place."""
        self._noise.add_to(numbers, entropy)

    def wrapped(self, total: Int64s) -> bool:
        """Return True for a sum that is too large to be honest, except with chance 2^-40."""
        return bool(max(int(total.max(initial=0)), -int(total.min(initial=0))) > self.reach)


class DistributedGaussian(NoiseShares):
    """Clips, rotates and rounds vectors, and adds a share of noise to each: their sum is private.

    A vector x of `dimension` entries becomes `share(x) = z + N`, whole numbers in units of `step`:

    1. x is scaled to the L2 norm `clip` if it is longer. With `rotation` it is filled up with zeros
       to `length` entries and rotated (`hadamard.rotate`, with signs that everybody knows).
    2. z is x / step with every entry rounded at random to one of the two whole numbers around it,
       so that its mean is x / step to 2^-32. If Σ z² is above `limit`, which has probability at
       most 2^-20, all entries are rounded again, and after eight times they are rounded towards
       zero.
    3. The entries of N are independent discrete Gaussians of parameter `share_variance`, drawn
       exactly, whatever x is.

    `mean(total, shares, signs)` turns a sum of `shares` such vectors into their mean.

    Sensitivity: Σ z² <= limit holds in whole numbers, with nothing neglected, so that two z lie at
    most 2 √limit apart. With n = length and ρ = clip / step, rounding adds independent errors of
    variance at most 1/4 to a vector of norm ρ: Kairouz, Liu and Steinke (2021), proposition 22,
    give

        limit = ⌊ρ² + n/4 + √(2 ln 2^20) · (ρ + √n / 2)⌋    (and at most (ρ + √n)²).

    `apart` is a distance below 2 · clip that the vectors' maker promises for any two vectors of one
    client, none of which is longer than clip · (1 - 2^-18). Nothing here checks it. Two z then lie
    at most apart / step + 2 √n + 2^-18 ρ apart: each entry is rounded by less than a step, and the
    sums of 32-bit numbers in `rotate` err by less than 2^-19 of a norm (one unit of 2^-24 in each
    of at most 21 levels, and in two products).

    Privacy: if one whole vector is replaced, whatever the others are, the sum of m shares satisfies
    `Gaussian(ratio(m))`. With nothing neglected, it is a post-processing of Gaussian noise of
    ratio(m) = √((m · share_variance - 16) / (1 + 2^-30)) / (2 √limit), or over the distance above,
    times the sensitivity:

    1. exp(-y² / 2a) · exp(-(x - y)² / 2b) = exp(-x² / 2(a + b)) · exp(-(y - μ)² / 2v) with v = ab /
       (a + b), and Σ_y exp(-(y - μ)² / 2v) is the same for all μ to within a factor of 1 ± 3
       exp(-2π² v), by Poisson summation. Adding one share after another, v >= 8 as share_variance
       >= 16: the sum of the noise of m <= 2^20 shares has the distribution of a discrete Gaussian
       of parameter m · share_variance to within a factor e^(±η), η = 1e-61 an entry.
    2. That distribution on whole numbers is a post-processing of continuous noise of a variance
       less by 16, as steps 2 and 3 at `GaussianMechanism` prove; the share 2^-30 of the variance
       outweighs η there, and here.

    The sum modulo 2^bits, and whatever is computed from it, is post-processing. Shares in the sum
    whose makers know or subtract their noise do not count in m.

    Wrapping: `bits` is the least number whose ring holds, with a quarter to spare, the sum of
    `clients` shares except with probability 2^-40. An entry of the rotated sum is a sum with random
    signs, of a vector no longer than clients · ρ, plus rounding and noise: it is sub-Gaussian with
    variance (clients · ρ)² / n + clients · (1/4 + share_variance). Without rotation clients · ρ
    bounds it. This does not cover vectors that were chosen in view of the round's signs. Privacy
    does not depend on wrapping. `wrapped` says whether a sum is larger than this.

    `entry_bits` sets the step: that many bits, one of them the sign, hold 8 times the root mean
    square clip / √n of a rotated entry or, without rotation, hold clip.
    """

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
        entry_bits = integer("entry_bits", entry_bits, 4, 24)
        self.rotation = rotation
        self.length = padded_length(dimension) if self.rotation else dimension
        peak = math.sqrt(self.length) / _PEAK if self.rotation else 1.0
        self.radius = (1 << (entry_bits - 1)) * peak
        self.step = self.clip / self.radius
        limit, square = _limit(self.radius, self.length), None
        if apart is not None:
            within("apart", apart, 0, 2 * self.clip, open_low=True)
            rounding = 2 * math.sqrt(self.length) + 2.0**-18 * self.radius
            square = min(4 * limit, math.ceil((apart / self.step + rounding) ** 2))
        super().__init__(ratio, limit, shares=shares, clients=clients, square=square)
        self.reach = self._reach()
        self.bits = ring_bits(self.reach)

    def share(self, vector: Array, signs: Int8s | None, entropy: Entropy) -> Signed:
        """Return the vector's share of a sum: clipped, rotated, rounded and noisy, in steps.

        `signs` are those of the rotation, or None without rotation.
        """
        numbers = self.rounded(vector, signs, entropy)
        self.add_share(numbers, entropy)
        return numbers

    def clipped(self, vector: Array) -> Float64s:
        """Return the vector, scaled to the norm `clip` if it is longer. It is not rounded."""
        vector = np.ascontiguousarray(finite_vector("update", vector), np.float32)
        factor = min(1.0, self.step * stretch(vector, self.radius))
        return vector * np.float64(factor)

    def rounded(self, vector: Array, signs: Int8s | None, entropy: Entropy) -> Signed:
        """Return the clipped and rotated vector in whole steps, before the noise.

        Its sum of squares is at most `limit`. Its integers have 32 bits if the ring has at most 32,
        since larger values wrap around in both.
        """
        vector = np.ascontiguousarray(finite_vector("update", vector), np.float32)
        scaled = np.empty_like(vector)
        factor = min(1 / self.step, stretch(vector, self.radius))
        np.multiply(vector, factor, out=scaled, dtype=np.float64, casting="same_kind")
        if self.rotation:
            assert signs is not None, "a rotation has signs"
            scaled = rotate(scaled, signs).astype(np.float32, copy=False)
        numbers: Signed = np.empty(self.length, np.int32 if self.bits <= 32 else np.int64)
        uniform = np.empty(min(self.length, _PART), np.uint32)
        for _ in range(_TRIES):
            total = 0
            for start in range(0, self.length, _PART):
                part = scaled[start : start + _PART]
                entropy.fill(uniform[: len(part)])
                total += _round_at_random(part, uniform, numbers[start : start + _PART])
            if total <= self.limit:
                return numbers
        while _round_towards_zero(scaled, numbers) > self.limit:
            scaled *= np.float32(1 - 2.0**-20)
        return numbers

    def mean(self, total: Int64s, shares: int, signs: Int8s | None) -> Float64s:
        """Turn `total`, the sum of `shares` shares, into their mean vector. Overwrites `total`."""
        values = into_floats(total)
        if self.rotation:
            assert signs is not None, "a rotation has signs"
            unrotate(values, signs)
        mean = values[: self.dimension]
        mean *= self.step / shares
        return mean

    def _reach(self) -> int:
        n, radius = self.clients, self.radius
        tail = math.sqrt(2 * math.log(2 * self.length / _WRAPS))
        spread = math.sqrt(n * (0.25 + self.share_variance))
        if self.rotation:
            return math.ceil(tail * math.hypot(n * radius / math.sqrt(self.length), spread))
        return math.ceil(n * radius + tail * spread)


class DistributedSum(NoiseShares):
    """Noise shares for clients' sums of clipped contributions, one per example.

    The sums themselves are not clipped. Every contribution moves a client's vector x by whole
    multiples of `step` and an L2 norm of at most `clip` (see `privacy.grid_sensitivity`). x becomes
    `share(x) = z + N`. z is x / step, with entries limited to 2^24 in absolute value, which moves
    no two vectors further apart. N is the noise of `DistributedGaussian`.

    Privacy: if one contribution to one of the vectors is replaced, the sum of m shares satisfies
    `Gaussian(ratio(m))`, by the proof in `DistributedGaussian` with limit = ⌈(clip / step)²⌉. The
    entries of a sum of `clients` vectors are at most clients · 2^24 plus noise, so the sum never
    wraps.
    """

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
        """Return the vector's share of a sum, rounded and noisy, in steps. There is no rotation."""
        numbers = to_grid(finite_vector("update", vector), self.step)
        self.add_share(numbers, entropy)
        return numbers

    def mean(self, total: Int64s, shares: int, signs: Int8s | None) -> Float64s:
        """Turn `total`, the sum of `shares` shares, into their mean vector. Overwrites `total`."""
        values = into_floats(total)
        values *= self.step / shares
        return values


def ring_bits(reach: int) -> int:
    """Return the number of bits of the smallest ring that holds sums from -reach to reach.

    A quarter of `reach` is left to spare on either side.
    """
    return (2 * math.ceil(reach * (1 + _BAND))).bit_length()


def _limit(radius: float, length: int) -> int:
    spread = math.sqrt(-2 * math.log(_AGAIN)) * (radius + math.sqrt(length) / 2)
    return math.floor(min(radius**2 + length / 4 + spread, (radius + math.sqrt(length)) ** 2))


def _round_at_random_numpy(scaled: Float32s, uniform: Uint32s, out: Signed) -> int:
    below = np.floor(scaled)
    up = uniform[: len(scaled)] < (scaled - below).astype(np.float64) * 2.0**32
    numbers = below.astype(np.int64) + up
    out[:] = numbers
    return int(np.sum(numbers * numbers))


@compiled(_round_at_random_numpy)
def _round_at_random(scaled: Float32s, uniform: Uint32s, out: Signed) -> int:
    """Write every entry to `out`, rounded up with its fraction as probability, to 2^-32.

    Returns the sum of the rounded entries' squares. `uniform` holds a random word per entry.
    """
    total = 0
    for i in range(len(scaled)):
        below = np.floor(scaled[i])
        number = int(below)
        if np.float64(uniform[i]) < np.float64(scaled[i] - below) * 4294967296.0:
            number += 1
        out[i] = number
        total += number * number
    return total


def _round_towards_zero(scaled: Float32s, out: Signed) -> int:
    out[:] = np.trunc(scaled)
    return int(np.sum(np.square(out, dtype=np.int64)))

"""A clip that follows a quantile of the vectors' norms, estimated from one extra noisy entry."""

from __future__ import annotations

import math

import numpy as np

from fedveil.base.array_types import Array, Float32s, Float64s
from fedveil.base.validate import integer, positive, real_vector, within
from fedveil.errors import InvalidValue
from fedveil.mechanisms.gaussian import stretch

#: Largest factor between the first clip and any later one.
_ROOM = 2.0**20
#: Noise of the bits' sum: a twentieth of their number, or more if so little noise would add more
#: than a tenth to the noise variance of the vectors.
_SHARE_NOISE, _MOST_LOSS = 1 / 20, 1 / 10


class QuantileClip:
    """Clips vectors to a norm C that follows a quantile of their norms.

    Output: in a round with the clip C, `joint(x, C)` turns a vector x of `dimension` entries into

        y = (first · x / max(|x|, C), ±half),     +half if |x| <= C, -half if |x| > C.

    `first` is the clip of the first round. The last entry of y is called the clip bit. `parted`
    splits the mean m of such vectors y, with or without noise, into

        the mean of the clipped vectors       C / first · (all entries of m but the last),
        the share of vectors with |x| <= C    ½ + (last entry of m) / (2 · half).

    `moved` limits this share to [0, 1], and returns the clip of the next round,

        C · exp(-rate · (share - quantile)),     limited to first · 2^-20 .. first · 2^20.

    Privacy: |y|² <= first² + half² = norm², for every x and C. So replacing one vector x moves a
    sum of vectors y by at most 2 · norm. If a Gaussian mechanism adds noise of standard deviation
    ratio · 2 · norm to such a sum, the loss of the whole sum, clip bits included, is that of
    `Gaussian(ratio)`. This holds for every C, even for one that a lying server sends or that
    depends on earlier releases.

    `bit_noise` determines half. The sum of the clip bits gives the number of vectors with |x| <= C,
    and `bit_noise` is the standard deviation of the noise in this number. It must be above `ratio`,
    and half = first / √((bit_noise / ratio)² - 1). The default is a twentieth of `clients`, or √11
    · ratio if that is larger. With the default, the clip bits increase the noise of the other
    entries by a factor of at most √1.1.

    Source: Andrew, Thakkar, McMahan and Ramaswamy, Differentially private learning with adaptive
    clipping, 2021, theorem 1 and algorithm 1. There, a vector is added or removed, which moves the
    sum of the bits by ½. Here a vector is replaced, which moves it by up to 1.
    """

    def __init__(
        self,
        first: float,
        ratio: float,
        *,
        dimension: int,
        clients: int,
        quantile: float = 0.5,
        rate: float = 0.2,
        bit_noise: float | None = None,
    ) -> None:
        self.first = within("clip", first, 2.0**-60, 2.0**60)
        ratio = positive("ratio", ratio)
        self.length = integer("dimension", dimension, 1) + 1
        self.quantile = within("quantile", quantile, 0, 1, open_low=True, open_high=True)
        self.rate = positive("rate", rate)
        least = ratio * math.sqrt(1 + 1 / _MOST_LOSS)
        usual = max(_SHARE_NOISE * integer("clients", clients, 1), least)
        self.bit_noise = usual if bit_noise is None else positive("bit_noise", bit_noise)
        if not self.bit_noise > ratio:
            raise InvalidValue(
                f"clip_bit_noise = {self.bit_noise:g} is not above the noise multiplier, "
                f"{ratio:g}: bits with so little noise would leave the updates no epsilon of their "
                f"own (at {least:.4g} they take a tenth of it)"
            )
        #: Rounded to float32, the type of the joint vector.
        self.half = float(np.float32(self.first / math.sqrt((self.bit_noise / ratio) ** 2 - 1)))
        if not self.half:
            raise InvalidValue(
                f"clip_bit_noise = {self.bit_noise:g} is too far above the noise multiplier, "
                f"{ratio:g}: no bit is sent with so much noise"
            )
        self.norm = math.hypot(self.first, self.half)
        self._read = self.half

    def round_bits(self, step: float) -> None:
        """Adapt the clip bit to vectors whose entries are rounded towards zero, in units of `step`.

        Rounding turns the bit into a whole number of steps, and `parted` divides by this number.
        The bit loses at most one step and a millionth, and the noise in the number of vectors with
        |x| <= C grows in the same proportion. `norm` does not change.
        """
        # A rounding error may shrink a vector first. So the bit is half a step above this number.
        whole = math.floor(self.half / step * (1 - 2.0**-20))
        if whole < 1:
            raise InvalidValue(f"step = {step:g} is too large for a clip bit of {self.half:g}")
        self.half = float(np.float32(min(self.half, (whole + 0.5) * step)))
        self._read = whole * step

    @property
    def most(self) -> float:
        """Return the largest clip that can occur, 2^20 times the first one."""
        return self.first * _ROOM

    def check(self, clip: float) -> float:
        """Return `clip`. Raises `InvalidValue` if it is outside [first · 2^-20, first · 2^20].

        first is the clip of the first round.
        """
        return within("clip", clip, self.first / _ROOM, self.most)

    def joint(self, vector: Array, clip: float) -> Float32s:
        """Return the clipped and scaled vector, followed by its clip bit.

        The vector becomes vector · min(1, clip / |vector|) · first / clip, where first is the clip
        of the first round. The clip bit is +`self.half` if the vector's norm is at most `clip`, and
        -`self.half` if it is not.
        """
        vector, clip = real_vector("update", vector), self.check(clip)
        fits = stretch(vector, clip) >= 1
        factor = self.first / clip if fits else stretch(vector, self.first)
        joint = np.empty(len(vector) + 1, np.float32)
        np.multiply(vector, factor, out=joint[:-1], dtype=np.float64, casting="same_kind")
        joint[-1] = self.half if fits else -self.half
        return joint

    def parted(self, mean: Float64s, clip: float) -> tuple[Float64s, float]:
        """Return the mean of the clipped vectors, and the share of vectors no longer than `clip`.

        `mean` is the mean of their joint vectors: for each vector, its clipped and scaled entries
        and its clip bit, as `joint` returns them. `mean` may have noise, which can move the share
        out of [0, 1].
        """
        return mean[:-1] * (clip / self.first), 0.5 + float(mean[-1]) / (2 * self._read)

    def moved(self, clip: float, share: float) -> float:
        """Return the next clip, given the `share` of vectors whose norm is at most `clip`."""
        off = min(max(share, 0.0), 1.0) - self.quantile
        return min(max(clip * math.exp(-self.rate * off), self.first / _ROOM), self.most)

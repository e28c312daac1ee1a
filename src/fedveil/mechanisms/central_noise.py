"""Central noise: each client clips its vector, and whoever holds the sum adds the noise to it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from fedveil._arrays import Array, Int32s, Int64s
from fedveil._validate import finite_vector, within
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.mechanisms.gaussian import (
    STEPS_PER_COORDINATE,
    GaussianMechanism,
    clip_to_grid,
    noise_in_steps,
    step_below,
)
from fedveil.privacy.gaussian_curve import epsilon_for
from fedveil.privacy.loss import Gaussian, PrivacyLoss

#: Noise beyond so many sigma has a probability below 2^-280.
_REACH_SIGMAS = 20
#: Noise of more steps than that is beyond the tables of the discrete Gaussian.
_MOST_STEPS = 2.0**27
#: What a ratio and a clip may be: a clip is then at most 2^30 steps of a grid.
_RATIOS = 2.0**-16, 2.0**30
_CLIPS = 2.0**-64, 2.0**64
_PART = 1 << 16


class CentralNoise:
    """Clip vectors to the L2 norm `clip` on a grid of `step`, and add Gaussian noise to their sum.

    `clipped` gives whole multiples z of `step` with |z| <= clip in exact arithmetic. `add_to` adds
    to a sum of such vectors, in steps, independent discrete Gaussians: those of
    `GaussianMechanism` with the same eps, delta and clip, for this step.

    Privacy: (eps, delta) for one client's whole vector in the sum, replace-one, against whoever
    reads the noised sum and nothing before it: replacing one vector moves the sum by at most
    2 · clip, and steps 1 to 3 of the proof at `GaussianMechanism` are about nothing else. How many
    vectors are in the sum is told. Nothing is promised where a vector in it is longer, nor against
    whoever holds the sum.
    """

    def __init__(self, eps: float, delta: float, clip: float, step: float, dimension: int) -> None:
        mechanism = GaussianMechanism(eps, delta, clip)
        coordinate, noise = clip / math.sqrt(dimension) / step, mechanism.sigma / step
        if coordinate < STEPS_PER_COORDINATE:
            raise InvalidValue(
                f"an entry of a vector of norm {clip:g} is {coordinate:.3g} steps of the "
                f"fixed-point numbers, as a root mean square over {dimension} entries: at least "
                f"{STEPS_PER_COORDINATE} are needed (more entry_bits, or a smaller clip of entries)"
            )
        if noise > _MOST_STEPS:
            raise InvalidValue(
                f"eps = {eps:g} needs noise of {noise:.3g} steps of the fixed-point "
                f"numbers: at most {_MOST_STEPS:.3g} are drawn (fewer entry_bits, or a larger clip "
                f"of entries)"
            )
        self._set(mechanism.loss, mechanism.sigma, clip, step)

    @classmethod
    def of_ratio(cls, ratio: float, delta: float, clip: float, dimension: int) -> CentralNoise:
        """Noise of `ratio` times the sensitivity 2 · clip, on a grid that suits it.

        The step is that of `GaussianMechanism.grid`, and finer where the noise is large: what is
        noised is a sum, in which the rounding of many vectors adds up. `delta` is what the loss is
        stated at.
        """
        delta = within("delta", delta, 0, 1, open_low=True, open_high=True)
        ratio = within("ratio", ratio, *_RATIOS)
        sigma = 2 * within("clip", clip, *_CLIPS) * ratio
        made = cls.__new__(cls)
        loss = PrivacyLoss(epsilon_for(ratio, delta), delta, release=Gaussian(ratio))
        made._set(loss, sigma, clip, step_below(sigma, clip, dimension, 2 * sigma / _MOST_STEPS))
        return made

    def _set(self, loss: PrivacyLoss, sigma: float, clip: float, step: float) -> None:
        self.clip, self.step, self.sigma, self.loss = clip, step, sigma, loss
        #: The square of the norm in steps: no clipped vector's is larger.
        self.limit = math.floor((Fraction(clip) / Fraction(step)) ** 2)
        self._noise = noise_in_steps(sigma, step)
        #: How far the noise of an entry reaches, in steps.
        self.reach = math.ceil(_REACH_SIGMAS * math.sqrt(self._noise.variance))

    def clipped(self, vector: Array) -> Int64s:
        """The vector in steps, shrunk to the norm `clip` where it is longer; towards zero."""
        vector = finite_vector("update", vector)
        return clip_to_grid(np.ascontiguousarray(vector, np.float64), self.clip, self.step)

    def within(self, multiples: Int32s | Int64s) -> bool:
        """Whether this is a vector that `clipped` can have given: its norm is no longer."""
        square = 0
        for start in range(0, len(multiples), _PART):
            part = multiples[start : start + _PART].astype(np.int64)
            if float(part @ part.astype(np.float64)) > 2.0 * self.limit:
                return False  # the exact sum might overflow
            square += int(part @ part)
        return square <= self.limit

    def noised(self, vector: Array, entropy: Entropy) -> Int64s:
        """The noised sum of this vector alone: what is known of the others changes nothing."""
        total = self.clipped(vector)
        self.add_to(total, entropy)
        return total

    def add_to(self, total: Int64s, entropy: Entropy) -> None:
        """Noise a sum of clipped vectors, in steps, in place: before anybody else reads it."""
        self._noise.add_to(total, entropy)

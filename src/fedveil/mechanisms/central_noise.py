"""Central noise: each client clips its vector, and whoever holds the sum adds the noise to it."""

from __future__ import annotations

import math

import numpy as np

from fedveil._arrays import Array, Int64s
from fedveil._validate import finite_vector
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.mechanisms.gaussian import (
    STEPS_PER_COORDINATE,
    GaussianMechanism,
    clip_to_grid,
    noise_in_steps,
)

#: Noise beyond so many sigma has a probability below 2^-280.
_REACH_SIGMAS = 20
#: Noise of more steps than that is beyond the tables of the discrete Gaussian.
_MOST_STEPS = 2.0**27


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
        self.clip, self.step, self.sigma, self.loss = clip, step, mechanism.sigma, mechanism.loss
        coordinate = clip / math.sqrt(dimension) / step
        if coordinate < STEPS_PER_COORDINATE:
            raise InvalidValue(
                f"an entry of a vector of norm {clip:g} is {coordinate:.3g} steps of the "
                f"fixed-point numbers, as a root mean square over {dimension} entries: at least "
                f"{STEPS_PER_COORDINATE} are needed (more entry_bits, or a smaller clip of entries)"
            )
        if self.sigma > _MOST_STEPS * step:
            raise InvalidValue(
                f"eps = {eps:g} needs noise of {self.sigma / step:.3g} steps of the fixed-point "
                f"numbers: at most {_MOST_STEPS:.3g} are drawn (fewer entry_bits, or a larger clip "
                f"of entries)"
            )
        self._noise = noise_in_steps(self.sigma, step)
        #: How far the noise of an entry reaches, in steps.
        self.reach = math.ceil(_REACH_SIGMAS * math.sqrt(self._noise.variance))

    def clipped(self, vector: Array) -> Int64s:
        """The vector in steps, shrunk to the norm `clip` where it is longer; towards zero."""
        vector = finite_vector("update", vector)
        return clip_to_grid(np.ascontiguousarray(vector, np.float64), self.clip, self.step)

    def noised(self, vector: Array, entropy: Entropy) -> Int64s:
        """The noised sum of this vector alone: what is known of the others changes nothing."""
        total = self.clipped(vector)
        self.add_to(total, entropy)
        return total

    def add_to(self, total: Int64s, entropy: Entropy) -> None:
        """Noise a sum of clipped vectors, in steps, in place: before anybody else reads it."""
        self._noise.add_to(total, entropy)

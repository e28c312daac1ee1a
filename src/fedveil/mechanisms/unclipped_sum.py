"""Gaussian noise on a client's sum of clipped contributions. The sum itself is not clipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float64s, Int64s
from fedveil.base.packing import join_parts
from fedveil.base.validate import finite_vector, integer, within
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.mechanisms.gaussian import noise_in_steps
from fedveil.privacy.gaussian_curve import analytic_sigma
from fedveil.privacy.grid_sensitivity import grid_step, moved, to_grid
from fedveil.privacy.sampled_gaussian import sampled_loss

_LEAST_CLIP, _MOST_CLIP, _MOST_SIGMA_STEPS = 2.0**-60, 2.0**60, 2.0**26


class GaussianSum:
    """Gaussian noise on a sum of clipped contributions, one for each example of a batch.

    Each example is in the batch with probability `rate`, secretly and independently.

    Input: a vector of `dimension` entries. Each example in the batch adds a vector of norm at most
    `clip` to it. The norm of the sum is not limited.

    Output: z + step * N, where z is the vector on the grid (`to_grid`). The coordinates of N are
    independent discrete Gaussians, drawn exactly. Their parameter s² is at least (sigma / step)² ·
    (1 + 2^-30) + 16. `sigma` is the smallest standard deviation of continuous noise that makes
    vectors at a distance of 2 · moved(clip) (eps, delta)-indistinguishable. `moved(clip)` is the
    largest distance by which one example can move z, including the rounding to the grid.

    Privacy: (eps, delta) if one example that is certainly in the batch is replaced. With the secret
    random batch the guarantee is stronger. `loss` states it, with the loss distribution by which
    many releases compose.

        >>> import numpy as np
        >>> from fedveil.entropy import Secure
        >>> from fedveil.mechanisms import GaussianSum
        >>> mechanism = GaussianSum(eps=2.0, delta=1e-6, clip=0.5, dimension=30, rate=0.1)
        >>> mechanism.privatize(np.ones(30, np.float32), Secure()).shape
        (30,)
        >>> mechanism.loss.epsilon < 2.0  # the example is rarely in the batch
        True
    """

    # Proof, with nothing neglected:
    #
    # 1. Given the other examples in the batch, z is one of three vectors: z0 without the replaced
    #    example, z1 with its old data and z2 with its new data. |z1 - z0|, |z2 - z0| <=
    #    moved(clip), in exact arithmetic.
    # 2. X ~ N(0, s² - 16) on each, in steps, gives the mixtures of `privacy.sampled_gaussian` with
    #    a noise of at least sigma · (1 + 2^-32). Its theorem bounds them.
    # 3. As in `GaussianMechanism`, the discrete output is post-processing of that, to within a
    #    factor e^(±1e-116) on the probability of each output, whatever z is, and so on mixtures.
    #    The 2^-32 in sigma outweighs it.

    def __init__(
        self, eps: float, delta: float, clip: float, *, dimension: int, rate: float = 1.0
    ) -> None:
        self.clip = within("clip", clip, _LEAST_CLIP, _MOST_CLIP)
        self.rate = within("rate", rate, 0, 1, open_low=True)
        self.dimension = integer("dimension", dimension, 1)
        self.step = grid_step(self.clip, dimension)
        distance = 2 * moved(self.clip, self.step, dimension)
        self.sigma = analytic_sigma(eps, delta, distance)
        if not self.step <= self.sigma <= _MOST_SIGMA_STEPS * self.step:
            raise InvalidValue(
                f"eps = {eps!r}, delta = {delta!r} and clip = {clip!r} need noise of sigma = "
                f"{self.sigma:g} in {dimension} dimensions, which is outside "
                f"[{self.step:g}, {_MOST_SIGMA_STEPS * self.step:g}]"
            )
        self.loss = sampled_loss(eps, delta, self.sigma / distance, self.rate)
        self._noise = noise_in_steps(self.sigma, self.step)

    def multiples(self, update: npt.NDArray[np.floating[Any]], entropy: Entropy) -> Int64s:
        """Return the noisy update as whole numbers, in units of `step`.

        Raises `InvalidValue` if the update has a NaN or an infinity, or another length than
        `dimension`.
        """
        return join_parts(len(update), self.drawing(update, entropy))

    def drawing(
        self, update: npt.NDArray[np.floating[Any]], entropy: Entropy
    ) -> Callable[[slice], Int64s]:
        """Return a function that computes the noisy update slice by slice, in units of `step`.

        All slices together are the result of `multiples`. Call the function once for each slice of
        `array_types.parts`, in order, because each call draws noise.
        """
        vector = finite_vector("update", update)
        if len(vector) != self.dimension:  # rounding more entries would move the sum further
            raise InvalidValue(
                f"update has {len(vector):,} entries, but dimension is {self.dimension:,}"
            )

        def draw(part: slice) -> Int64s:
            whole = to_grid(vector[part], self.step)
            self._noise.add_to(whole, entropy)
            return whole

        return draw

    def privatize(self, update: npt.NDArray[np.floating[Any]], entropy: Entropy) -> Float64s:
        """Return `update`, rounded to multiples of `step`, plus noise."""
        return self.multiples(update, entropy).astype(np.float64) * self.step

    def log_likelihood(self, output: Float64s, update: npt.NDArray[np.floating[Any]]) -> float:
        """Return ln Pr[noisy sum = `output` | sum without noise = `update`], up to a constant."""
        variance = self._noise.variance * self.step**2
        return -float(np.sum((output - to_grid(update, self.step) * self.step) ** 2)) / (
            2 * variance
        )

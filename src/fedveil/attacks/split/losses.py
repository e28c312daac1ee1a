"""The loss of each example, computed from the mean losses of the training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.base.array_types import Float64s, Int64s

#: Number of iterations of the least squares. Few iterations give a smooth solution.
_ITERATIONS = 60


def losses_of_examples(came: Sequence[Int64s], losses: Sequence[float], count: int) -> Float64s:
    """Estimate how far the loss of each of `count` examples lies above the mean loss.

    `came[s]` has the indices of the examples of step s, and `losses[s]` is their mean loss. The
    mean loss of the neighbouring steps is first subtracted from it, because losses fall during
    training. Then the estimates are fitted by least squares: the mean estimate over the examples of
    a step should be equal to this difference.
    """
    sizes = np.array([len(places) for places in came])
    around = max(round(count / sizes.mean()), 1)  # as many steps as see every example once
    window = np.ones(min(around, len(losses)))
    steps = np.ones(len(losses))
    trend = np.convolve(losses, window, "same") / np.convolve(steps, window, "same")
    return _Means(np.concatenate(came), sizes, count).solved(np.asarray(losses, float) - trend)


@dataclass(frozen=True)
class _Means:
    """The linear map from one value per example to one mean per step, over the step's examples.

    `places` has the indices of the examples of all steps, one step after the other. `sizes[s]` is
    the number of examples of step s, and `count` the number of different examples.
    """

    places: Int64s
    sizes: Int64s
    count: int

    def of_steps(self, values: Float64s) -> Float64s:
        starts = np.cumsum(self.sizes) - self.sizes
        means: Float64s = np.add.reduceat(values[self.places], starts) / self.sizes
        return means

    def transposed(self, steps: Float64s) -> Float64s:
        weights = np.repeat(steps / self.sizes, self.sizes)
        sums: Float64s = np.bincount(self.places, weights, minlength=self.count).astype(np.float64)
        return sums

    def solved(self, means: Float64s) -> Float64s:
        """Return the values, one per example, whose means of steps are closest to `means`.

        Solves the least-squares problem by at most `_ITERATIONS` steps of conjugate gradients
        (CGLS) from zero.
        """
        values, left = np.zeros(self.count), means
        direction = residual = self.transposed(left)
        for _ in range(_ITERATIONS):
            length = residual @ residual
            if length < 1e-18:
                break
            image = self.of_steps(direction)
            rate = length / (image @ image)
            values = values + rate * direction
            left = left - rate * image
            residual = self.transposed(left)
            direction = residual + (residual @ residual) / length * direction
        return values

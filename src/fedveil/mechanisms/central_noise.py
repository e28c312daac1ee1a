"""Central noise: clients clip their vectors, and the holder of the sum adds noise to it once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np

from fedveil.base.array_types import Array, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.base.packing import join_parts
from fedveil.base.validate import finite_vector, within
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.mechanisms.gaussian import (
    FINER,
    STEPS_PER_COORDINATE,
    GaussianMechanism,
    clipping_to_grid,
    distance_of,
    noise_in_steps,
    step_below,
)
from fedveil.privacy.gaussian_curve import epsilon_for
from fedveil.privacy.grid_sensitivity import grid_step, to_grid
from fedveil.privacy.loss import Gaussian, PrivacyLoss, exactly

#: Noise exceeds this many sigma with a probability below 2^-280.
_REACH_SIGMAS = 20
#: The tables of the discrete Gaussian cover noise of at most this many steps.
_MOST_STEPS = 2.0**27
#: Range of a ratio. It keeps a clip within 2^30 steps of a grid.
_RATIOS = 2.0**-16, 2.0**30
_CLIPS = 2.0**-64, 2.0**64


class CentralNoise:
    """Clips vectors to the L2 norm `clip`, and adds Gaussian noise to a sum of clipped vectors.

    Output: `clipped` returns a vector of whole numbers z with step · |z| <= clip, in exact
    arithmetic. `add_to` adds an independent discrete Gaussian to each entry of a sum of such
    vectors. The noise's parameter s² is that of a `GaussianMechanism` with the same eps, delta,
    clip and `step`.

    Privacy: (eps, delta) for one client's whole vector in the sum, replace-one, against everyone
    who reads only the noisy sum. The number of vectors in the sum is public. Nothing is guaranteed
    against the holder of the sum. If a vector in the sum is longer than `clip`, nothing is
    guaranteed at all.
    """

    # Why: replacing one vector moves the sum by at most 2 · clip, or by a smaller distance `apart`
    # that the maker of the vectors promises, rounding included. The proof of `GaussianMechanism`
    # needs nothing else.

    def __init__(
        self,
        eps: float,
        delta: float,
        clip: float,
        step: float,
        dimension: int,
        apart: float | None = None,
    ) -> None:
        mechanism = GaussianMechanism(eps, delta, clip, apart=apart)
        coordinate, noise = clip / math.sqrt(dimension) / step, mechanism.sigma / step
        if coordinate < STEPS_PER_COORDINATE:
            raise InvalidValue(
                f"an entry of a vector of norm {clip:g} is {coordinate:.3g} steps of the "
                f"fixed-point numbers, as a root mean square over {dimension} entries: at least "
                f"{STEPS_PER_COORDINATE} are needed (more entry_bits, or a smaller clip of entries)"
            )
        if noise > _MOST_STEPS:
            raise InvalidValue(
                f"eps = {exactly(eps)} needs noise of {noise:.3g} steps of the fixed-point "
                f"numbers: at most {_MOST_STEPS:.3g} are drawn (fewer entry_bits, or a larger clip "
                f"of entries)"
            )
        self._set(mechanism.loss, mechanism.sigma, clip, step)

    @classmethod
    def of_ratio(
        cls,
        ratio: float,
        delta: float,
        clip: float,
        dimension: int,
        apart: float | None = None,
        entry: float = math.inf,
    ) -> CentralNoise:
        """Return noise whose standard deviation is `ratio` times the sensitivity.

        The sensitivity is `apart` or, if this is None, 2 · clip. With `apart`, the caller promises
        that any two possible vectors of a client are at most `apart` from each other. `dimension`
        is the number of entries of a vector. An entry of magnitude `entry` is at least 16 steps.
        The result's attribute `loss` states the epsilon of this noise at `delta`.
        """
        delta = within("delta", delta, 0, 1, open_low=True, open_high=True)
        ratio = within("ratio", ratio, *_RATIOS)
        sigma = distance_of(within("clip", clip, *_CLIPS), apart) * ratio
        made = cls.__new__(cls)
        loss = PrivacyLoss(epsilon_for(ratio, delta), delta, release=Gaussian(ratio))
        entries = dimension if apart is None else dimension * FINER**2
        step = step_below(sigma, clip, entries, 2 * sigma / _MOST_STEPS)
        while step * STEPS_PER_COORDINATE > entry:
            step /= 2
        if sigma > _MOST_STEPS * step:
            raise InvalidValue(
                f"an entry of {entry:g} beside noise of {sigma:g} is too small: the noise would "
                f"be {sigma / step:.3g} steps, and at most {_MOST_STEPS:.3g} are drawn"
            )
        made._set(loss, sigma, clip, step)
        return made

    def _set(self, loss: PrivacyLoss, sigma: float, clip: float, step: float) -> None:
        self.clip, self.step, self.sigma, self.loss = clip, step, sigma, loss
        #: Largest squared norm of a clipped vector, in steps².
        self.limit = math.floor((Fraction(clip) / Fraction(step)) ** 2)
        self._noise = noise_in_steps(sigma, step)
        #: Largest noise of an entry, in steps.
        self.reach = math.ceil(_REACH_SIGMAS * math.sqrt(self._noise.variance))

    def clipped(self, vector: Array) -> Int64s:
        """Return `vector` in units of `step`, clipped to norm `clip` and rounded towards zero."""
        return join_parts(len(vector), self.clipping(vector))

    def clipping(self, vector: Array) -> Callable[[slice], Int64s]:
        """Return a function that maps a slice to that slice of `clipped(vector)`."""
        vector = finite_vector("update", vector)
        kind = np.float32 if vector.dtype == np.float32 else np.float64
        return clipping_to_grid(np.ascontiguousarray(vector, kind), self.clip, self.step)

    def within(self, multiples: Iterable[Int32s | Int64s]) -> bool:
        """Return True if a vector in units of `step` has a norm of at most `clip`.

        `multiples` yields the vector's parts.
        """
        square = 0
        for part in multiples:
            nearly, exact = _squares(part)
            if nearly > 2.0 * self.limit:
                return False  # the exact sum might overflow
            square += exact
        return square <= self.limit

    def noised(self, vector: Array, entropy: Entropy) -> Int64s:
        """Return the clipped `vector` plus the noise that a sum receives, in units of `step`.

        An attacker who knows all other clients' vectors can subtract them from a noisy sum. The
        result then has this distribution.
        """
        total = self.clipped(vector)
        self.add_to(total, entropy)
        return total

    def add_to(self, total: Int64s, entropy: Entropy) -> None:
        """Add noise in place to `total`, a sum of clipped vectors in units of `step`."""
        self._noise.add_to(total, entropy)


class CentralSum(CentralNoise):
    """Central noise for vectors that add up clipped contributions, one for each example.

    A client's vector is the sum of its examples' contributions, and is not clipped itself. Each
    contribution changes it by a vector of L2 norm at most `clip`, whose entries are whole multiples
    of `step` (see `privacy.grid_sensitivity`). The entries of the client's vector are limited to
    2^24 steps in absolute value, which costs no privacy.

    Privacy: the guarantee of `CentralNoise`, but for replacing one contribution, not a whole
    vector. The noise's standard deviation is 2 · clip times the constructor's `ratio`.
    """

    def __init__(self, ratio: float, delta: float, clip: float, dimension: int) -> None:
        ratio, clip = within("ratio", ratio, *_RATIOS), within("clip", clip, *_CLIPS)
        sigma, step = 2 * clip * ratio, grid_step(clip, dimension)
        if sigma > _MOST_STEPS * step:
            raise InvalidValue(
                f"a ratio of {ratio:g} and {dimension:,} entries need noise of {sigma / step:.3g} "
                f"steps: at most {_MOST_STEPS:.3g} are drawn (a larger epsilon, or fewer entries)"
            )
        loss = PrivacyLoss(epsilon_for(ratio, delta), delta, per="example", release=Gaussian(ratio))
        self._set(loss, sigma, clip, step)

    def clipping(self, vector: Array) -> Callable[[slice], Int64s]:
        vector = finite_vector("update", vector)
        return lambda part: to_grid(vector[part], self.step)

    def within(self, multiples: Iterable[Int32s | Int64s]) -> bool:
        for _ in multiples:  # reading a part checks its entries, and the norm is not limited
            pass
        return True


def _squares_numpy(multiples: Int32s | Int64s) -> tuple[float, int]:
    numbers = multiples.astype(np.int64)
    return float(numbers @ numbers.astype(np.float64)), int(numbers @ numbers)


@compiled(_squares_numpy, reorder=True)
def _squares(multiples: Int32s | Int64s) -> tuple[float, int]:
    """Return Σ multiples² in two forms: rounded to a float, and exactly modulo 2^64."""
    nearly, exact = 0.0, np.int64(0)
    for i in range(len(multiples)):
        number = np.int64(multiples[i])
        exact += number * number
        nearly += np.float64(number) * np.float64(number)
    return nearly, int(exact)

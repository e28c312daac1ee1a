"""The Gaussian mechanism: clip a vector to an L2 norm, add Gaussian noise, state the loss."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float64s, Int64s, parts
from fedveil.base.kernels import compiled
from fedveil.base.packing import join_parts
from fedveil.base.validate import choice, finite_vector, real_vector, within
from fedveil.entropy import Entropy, source
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact.discrete_gaussian import DiscreteGaussian
from fedveil.privacy.gaussian_curve import analytic_sigma
from fedveil.privacy.loss import Gaussian, PrivacyLoss

Vector = npt.NDArray[np.floating[Any]]

#: A step is at most sigma over the first number, and at least half of sigma over the second.
_LEAST_STEPS_PER_SIGMA = 1 << 10
_MOST_STEPS_PER_SIGMA = 1 << 18
#: Least number of steps in the root mean square coordinate of a vector of full norm.
STEPS_PER_COORDINATE = 16
#: Factor by which a grid is finer if the caller bounds the vectors' distance (`apart`).
FINER = 16
_MAX_CLIP_PER_SIGMA = 2.0**18
#: Range of eps, clip and sigma: far from the limits of floating-point numbers.
_LEAST, _MOST = 2.0**-100, 2.0**100

#: Variance beyond sigma², in steps² and relative to sigma². The proof of privacy needs both.
SMOOTHING = 16
SLACK = Fraction(1, 1 << 30)
_LANES = 32


class GaussianMechanism:
    """Clips a vector to the L2 norm `clip` and adds Gaussian noise.

    Two clipped vectors are at most 2 · clip apart. The caller may promise that any two possible
    vectors are closer, at most `apart`, rounding included. Nothing checks this promise. `sigma` is
    the smallest standard deviation of Gaussian noise per coordinate that makes vectors at this
    distance (eps, delta)-indistinguishable (the analytic Gaussian mechanism of Balle and Wang).

    Output for noise = "discrete": z + step · N. z is the clipped vector, rounded towards zero to
    whole multiples of `step`, a power of two (see `grid`). The coordinates of N are independent
    discrete Gaussians, drawn exactly. Their parameter s² is at least (sigma / step)² · (1 + 2^-30)
    + 16. It is the smallest such number that `DiscreteGaussian` can use: a whole number below 2^24,
    or one below 2^20 times a power of 4.

    Privacy: (eps, delta) for a whole vector, replace-one, without any approximation.

    noise = "continuous" adds floating-point normal numbers, for comparison with other systems. The
    low bits of such outputs distinguish inputs (Mironov, 2012), so `loss` is infinite.

    Source: MindSpore Federated's document on DP_ENCRYPT, which adds the noise to the weights. Here
    it is added to the update.

        >>> import numpy as np
        >>> from fedveil.entropy import Secure
        >>> from fedveil.mechanisms import GaussianMechanism
        >>> mechanism = GaussianMechanism(eps=3.0, delta=1e-6, clip=0.5)
        >>> report = mechanism.privatize(np.linspace(-1, 1, 700, dtype=np.float32), Secure())
        >>> report.shape, mechanism.loss.epsilon
        ((700,), 3.0)
    """

    # Proof of the privacy of discrete noise:
    #
    # 1. |z| <= clip in exact arithmetic (`clip_to_grid`), so |z - z'| <= 2 · clip, or `apart`.
    # 2. Let X ~ N(0, s² - 16), in steps. Given X, let Y be the discrete Gaussian around X of
    #    parameter 16. z / step is whole, so z / step + Y is drawn from z / step + X alone. It is
    #    post-processing of the continuous mechanism, whose noise is at least sigma · (1 + 2^-32).
    # 3. By Poisson summation, Σ_n exp(-(n - x)² / 32) is the same for all x to within a factor of 1
    #    ± 2e-137. So the distributions of Y and N, of all of up to 10^19 coordinates together,
    #    differ by a factor of at most e^(±η), η = 1e-116. If Y satisfies (eps, delta'), then N
    #    satisfies (eps + 2η, e^η · delta'). The 2^-32 in sigma outweighs this, and the rounding of
    #    `sigma` itself, by orders of magnitude: delta falls by mu · phi(x) for a unit of ln sigma,
    #    in the terms of `analytic_sigma`, and rises by less than phi(x) · 1.26 for a unit of eps.

    def __init__(
        self,
        eps: float,
        delta: float,
        clip: float,
        noise: Literal["discrete", "continuous"] = "discrete",
        apart: float | None = None,
    ) -> None:
        self.eps = within("eps", eps, _LEAST, _MOST)
        self.delta = within("delta", delta, 0, 1, open_low=True, open_high=True)
        self.clip = within("clip", clip, _LEAST, _MOST)
        self.noise = choice("noise", noise, ("discrete", "continuous"))
        distance = distance_of(self.clip, apart)
        self._finer = 1 if apart is None else FINER
        self.sigma = analytic_sigma(self.eps, self.delta, distance)
        least = self.clip / _MAX_CLIP_PER_SIGMA if self.noise == "discrete" else _LEAST
        if not max(least, _LEAST) <= self.sigma <= _MOST:
            raise InvalidValue(
                f"eps = {eps!r}, delta = {delta!r} and clip = {clip!r} need {noise} noise of "
                f"sigma = {self.sigma:g}, which is outside [{max(least, _LEAST):g}, {_MOST:g}]"
            )
        if self.noise == "discrete":
            release = Gaussian(self.sigma / distance)
            self.loss = PrivacyLoss(self.eps, self.delta, per="update", release=release)
        else:
            self.loss = PrivacyLoss(math.inf, per="update")

    def privatize(self, update: Vector, entropy: Entropy) -> Vector:
        """Return the noisy update: float64 if `update` is float64 or integers, otherwise float32.

        Float32 rounds discrete results above 2^24 steps, which costs no privacy. Raises
        `InvalidValue` on NaN and infinity.
        """
        vector, entropy = _real_vector(update), source(entropy)
        result = np.empty_like(vector)
        if self.noise == "discrete":
            multiples, step = self.multiples(vector, entropy), self.grid(len(vector)).step
            np.multiply(multiples, step, out=result, dtype=np.float64, casting="unsafe")
        else:
            result[:] = self.clipped(vector) + self.sigma * _normal(len(vector), entropy)
        return result

    def clipped(self, update: Vector) -> Float64s:
        """Return the update without noise: clipped and, for discrete noise, on the grid."""
        vector = _real_vector(update)
        if self.noise == "discrete":
            step = self.grid(len(vector)).step
            return clip_to_grid(vector, self.clip, step).astype(np.float64) * step
        shrunk: Float64s = vector.astype(np.float64) * min(1.0, stretch(vector, self.clip))
        return shrunk

    def log_likelihood(self, output: Float64s, update: Vector) -> float:
        """Return ln of the probability (or density) of `output`, given `update`, up to a constant.

        The result is exact for discrete noise. Continuous noise has this density only
        approximately.
        """
        variance = self.sigma**2
        if self.noise == "discrete":
            grid = self.grid(len(output))
            variance = grid.noise.variance * grid.step**2
        return -float(np.sum((output - self.clipped(update)) ** 2)) / (2 * variance)

    def multiples(self, update: Vector, entropy: Entropy) -> Int64s:
        """Return the noisy update of the discrete mechanism, as whole numbers of grid steps."""
        return join_parts(len(update), self.drawing(update, entropy))

    def drawing(self, update: Vector, entropy: Entropy) -> Callable[[slice], Int64s]:
        """Return a function that computes the noisy update slice by slice, in whole grid steps.

        All slices together are the result of `multiples`. Call the function once for each slice of
        `array_types.parts`, in order, because each call draws noise.
        """
        vector = _real_vector(update)
        grid = self.grid(len(vector))
        clipped = clipping_to_grid(vector, self.clip, grid.step)

        def draw(part: slice) -> Int64s:
            multiples = clipped(part)
            grid.noise.add_to(multiples, entropy)
            return multiples

        return draw

    def grid(self, dimension: int) -> Grid:
        """Return the discrete mechanism's grid for vectors of `dimension` coordinates.

        The step is the largest power of two that is at most sigma / 2^10 and at most clip / (16
        √dimension), but never below sigma / 2^19. If the constructor's `apart` was given, the
        second limit is clip / (256 √dimension).
        """
        return _grid(self.sigma, self.clip, dimension * self._finer**2)


def distance_of(clip: float, apart: float | None) -> float:
    """Return the largest distance between clipped vectors: `apart`, or 2 · clip if it is None."""
    return 2 * clip if apart is None else within("apart", apart, 0, 2 * clip, open_low=True)


@dataclass(frozen=True)
class Grid:
    """Multiples of `step`, to which vectors are rounded. `noise` draws whole numbers of steps."""

    step: float
    noise: DiscreteGaussian


@functools.lru_cache(maxsize=64)
def _grid(sigma: float, clip: float, dimension: int) -> Grid:
    step = step_below(sigma, clip, dimension, sigma / _MOST_STEPS_PER_SIGMA)
    return Grid(step, noise_in_steps(sigma, step))


def step_below(sigma: float, clip: float, dimension: int, least: float = 0.0) -> float:
    """Return a grid step: the largest power of two up to a limit.

    The limit is the smaller of sigma / 2^10 and clip / (16 √dimension), for noise of standard
    deviation `sigma` and vectors of `dimension` entries clipped to norm `clip`. If this is below
    `least`, the limit is `least`.
    """
    coordinate = clip / math.sqrt(max(dimension, 1))
    wanted = min(sigma / _LEAST_STEPS_PER_SIGMA, coordinate / STEPS_PER_COORDINATE)
    return _power_of_two(max(wanted, least))


def noise_in_steps(sigma: float, step: float) -> DiscreteGaussian:
    """Return discrete noise in units of `step`, as private as Gaussian noise of this `sigma`."""
    steps = Fraction(sigma) / Fraction(step)
    return DiscreteGaussian.at_least(steps**2 * (1 + SLACK) + SMOOTHING)


def clip_to_grid(vector: Vector, clip: float, step: float) -> Int64s:
    """Return `vector` in units of `step`, clipped to the norm `clip` and rounded towards zero.

    The result m satisfies step · |m| <= clip in exact arithmetic. `clip` must be at most 2^30
    steps. If `step` is a power of two, each entry of a vector that is not clipped changes by less
    than a step.
    """
    return join_parts(len(vector), clipping_to_grid(vector, clip, step))


def clipping_to_grid(vector: Vector, clip: float, step: float) -> Callable[[slice], Int64s]:
    """Return a function that maps a slice to that slice of the result of `clip_to_grid`.

    Each call overwrites the array that the previous call returned.
    """
    # The check that Σ m² is at most ⌊(clip / step)²⌋ is made in integers. Floating-point arithmetic
    # only proposes a factor. If the factor is too large by rounding, it shrinks by 2^-30 and all
    # entries are rounded again.
    radius = clip / step
    limit = math.floor((Fraction(clip) / Fraction(step)) ** 2)
    factor = min(1 / step, stretch(vector, radius))
    longest = max((part.stop - part.start for part in parts(len(vector))), default=0)
    room = np.empty(longest, np.int64)

    def rounded(part: slice) -> tuple[Int64s, int]:
        multiples = room[: part.stop - part.start]
        return multiples, _round_to_grid(vector[part], factor, multiples)

    while sum(rounded(part)[1] for part in parts(len(vector))) > limit:
        factor *= 1 - 2.0**-30
    return lambda part: rounded(part)[0]


def stretch(vector: Vector, norm: float) -> float:
    """Return norm / |vector|, the factor that scales `vector` to the norm `norm`.

    The factor is infinite if it exceeds a float's range. Raises `InvalidValue` on NaN and infinity.
    """
    if vector.dtype == np.float32:  # no square of a 32-bit float overflows or underflows in 64 bits
        return _stretch(vector, norm, 1.0)
    highest, lowest = float(vector.max(initial=0.0)), float(vector.min(initial=0.0))
    # A power of two near 1 / peak: no square of a scaled entry overflows, and no relevant one
    # underflows.
    exponent = math.frexp(max(highest, -lowest))[1]
    return _stretch(vector, norm, math.ldexp(1.0, -max(-1000, min(1000, exponent))))


def _stretch(vector: Vector, norm: float, scale: float) -> float:
    squares = sum_of_squares(vector, scale, np.zeros(_LANES))
    if not math.isfinite(squares):
        finite_vector("update", vector)
    return norm / math.sqrt(squares) * scale if squares else math.inf


def _real_vector(update: Vector) -> Vector:
    vector = real_vector("update", update)
    if vector.dtype.itemsize > 8:
        raise InvalidValue(f"update has dtype {vector.dtype}, float64 is the widest allowed")
    return np.ascontiguousarray(vector, np.float32 if vector.dtype.itemsize <= 4 else np.float64)


def _power_of_two(bound: float) -> float:
    return math.ldexp(1.0, math.frexp(bound)[1] - 1)


def _normal(count: int, entropy: Entropy) -> Float64s:
    words = entropy.words(count + count % 2) >> np.uint64(11)
    radius, turn = words.reshape(2, -1) * 2.0**-53
    radius = np.sqrt(-2 * np.log1p(-radius))
    turn *= 2 * np.pi
    return np.concatenate([radius * np.cos(turn), radius * np.sin(turn)])[:count]


def _sum_of_squares_numpy(vector: Vector, scale: float, lanes: Float64s) -> float:
    rows = np.zeros((-(-len(vector) // len(lanes)), len(lanes)))
    rows.reshape(-1)[: len(vector)] = np.square(vector.astype(np.float64) * scale)
    # cumsum adds in order, like the loop. np.sum does not.
    return float(np.cumsum(np.cumsum(rows, axis=0)[-1])[-1])


@compiled(_sum_of_squares_numpy)
def sum_of_squares(vector: Vector, scale: float, lanes: Float64s) -> float:
    """Return Σ (scale · entry)² over the vector, added in a fixed order.

    `lanes` is working memory for partial sums: `_LANES` zeros.
    """
    whole = len(vector) // _LANES * _LANES
    for start in range(0, whole, _LANES):
        for j in range(_LANES):
            scaled = np.float64(vector[start + j]) * scale
            lanes[j] += scaled * scaled
    for j in range(len(vector) - whole):
        scaled = np.float64(vector[whole + j]) * scale
        lanes[j] += scaled * scaled
    total = 0.0
    for j in range(_LANES):
        total += lanes[j]
    return total


def _round_to_grid_numpy(vector: Vector, factor: float, out: Int64s) -> int:
    out[:] = np.trunc(vector.astype(np.float64) * factor)
    return int(np.sum(out * out))


@compiled(_round_to_grid_numpy)
def _round_to_grid(vector: Vector, factor: float, out: Int64s) -> int:
    """Write `factor` times the vector, rounded towards zero, to `out`. Returns the exact Σ out²."""
    total = 0
    for i in range(len(vector)):
        multiple = int(np.float64(vector[i]) * factor)
        out[i] = multiple
        total += multiple * multiple
    return total

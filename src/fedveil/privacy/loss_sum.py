"""Distributions of sums of independent privacy losses, by FFT and with an accurate tail.

The relevant tail of a sum has mass delta, perhaps 1e-9, but an FFT is wrong by about 1e-16 of the
whole mass. So each loss's distribution is tilted first: its masses are multiplied by e^(tilt *
loss) and divided by their sum. The right tilt moves the tail into the middle (Wilson and Keich:
Accurate pairwise convolutions of non-negative vectors via FFT, 2016). Errors are on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from fedveil.base.array_types import Float64s

#: Tilted mass that one step may leave out on either side. It is added to the slack.
TAIL = 1e-13
_LOG_TAIL = -math.log(TAIL)
#: Points of the grid: a window of them fits an FFT of 2^16.
_POINTS = 60_000
#: Number of losses of one distribution that are added up at a time.
BLOCK = 16
#: The largest tilt times step for which a grid is used.
_STEEPEST = 0.1
#: Orders of Chernoff's bound, relative to the best for a Gaussian. Distributions with rare large
#: losses need smaller ones.
_FACTORS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8, 1.0, 1.3, 2.0)
_UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True)
class Tilted:
    """A tilted loss distribution. The loss `origin + step * k` has the tilted mass `weights[k]`.

    Tilting multiplies masses by e^(tilt * loss) and normalises them. Rare losses may be left out:
    their tilted mass is at most `slack`.
    """

    origin: float
    step: float
    weights: Float64s
    slack: float = 0.0

    @property
    def losses(self) -> Float64s:
        return self.origin + self.step * np.arange(len(self.weights), dtype=np.float64)

    def log_moment(self, order: float) -> float:
        """Return ln of the sum of weight * e^(order * loss), or a slightly larger number."""
        logarithms, lowest, highest = self._runs
        exponents = logarithms + order * (highest if order > 0 else lowest)
        largest = float(exponents.max())
        return largest + math.log(float(np.exp(exponents - largest).sum()))

    @cached_property
    def _runs(self) -> tuple[Float64s, Float64s, Float64s]:
        """Return log weight, lowest loss and highest loss of each block of neighbouring losses.

        A block has 16 losses, or 1 if there are few. Its weight is the sum of their weights. Blocks
        of weight 0 are left out.
        """
        size = len(self.weights)
        run = 16 if size > 1024 else 1
        weights: Float64s = np.add.reduceat(self.weights, np.arange(0, size, run))
        lowest = self.losses[::run]
        highest = lowest + self.step * (run - 1)
        some = weights > 0
        return np.log(weights[some]), lowest[some], highest[some]

    def variance(self) -> float:
        mass = float(self.weights.sum())
        losses = self.losses
        mean = float((self.weights * losses).sum()) / mass
        return float((self.weights * (losses - mean) ** 2).sum()) / mass

    def trimmed(self) -> Tilted:
        """Return the distribution without its smallest and its largest losses.

        At each end, a tilted mass of at most `TAIL` is left out. The result's `slack` is 2 `TAIL`
        larger.
        """
        kept = np.flatnonzero(np.cumsum(self.weights) > TAIL)
        kept_back = np.flatnonzero(np.cumsum(self.weights[::-1]) > TAIL)
        first, last = int(kept[0]), len(self.weights) - int(kept_back[0])
        weights = self.weights[first:last]
        return Tilted(self.origin + first * self.step, self.step, weights, self.slack + 2 * TAIL)

    def on_grid(self, step: float, tilt: float) -> Tilted:
        """Return the distribution on a grid with the step `step`, without understating any delta.

        The mass between two grid points is split between them. `tilt` must be this distribution's
        tilt. Raises `TooSteep` if `tilt` * `step` is too large.
        """
        # An outcome between two grid points becomes two outcomes on them that preserve its mass
        # under both inputs. Merging the two gives the original distribution, so no privacy curve is
        # lowered.
        if tilt * step > _STEEPEST:
            raise TooSteep
        offsets = self.step * np.arange(len(self.weights), dtype=np.float64)
        cells = np.floor(offsets / step)
        rests = np.clip(offsets - cells * step, 0.0, step)
        upper = np.clip(np.expm1(-rests) / math.expm1(-step), 0.0, 1.0)
        index = cells.astype(np.int64)
        size = int(index[-1]) + 2
        weights = np.zeros(size)
        weights += np.bincount(index, self.weights * (1 - upper) * np.exp(-tilt * rests), size)
        weights += np.bincount(
            index + 1, self.weights * upper * np.exp(tilt * (step - rests)), size
        )
        return Tilted(self.origin, step, weights, self.slack)


class TooSteep(Exception):
    """Raised by `Tilted.on_grid` if `tilt` is too large for the grid's `step`.

    A tilt multiplies the mass at each loss by e^(tilt * loss). From one grid point to the next, the
    factor grows by e^(tilt * step), which must stay close to 1. The caller retries with a smaller
    tilt.
    """


Part: TypeAlias = tuple[Tilted, int]


def add(parts: Sequence[Part], tilt: float) -> Tilted:
    """Return the tilted distribution of a sum of independent losses.

    Each of `parts` is the distribution of one loss, tilted by `tilt`, and the number of such losses
    in the sum.
    """
    parts = [(part.trimmed(), count) for part, count in parts]
    low, high = _window(parts)
    finest = max((high - low) / _POINTS, 1e-13 * max(abs(low), abs(high)), 1e-300)
    common = parts[0][0].step
    exact = common >= finest and all(part.step == common for part, _ in parts)
    step = common if exact else finest
    gridded = [(p if p.step == step else p.on_grid(step, tilt), n) for p, n in parts]
    low, high = _window(gridded)  # gridding moved some mass up
    origin = math.fsum(p.origin * n for p, n in gridded)
    first = math.floor((low - origin) / step)
    size = math.ceil((high - origin) / step) - first + 1
    length = 1 << max(1, (size - 1).bit_length())
    spectrum = np.ones(length // 2 + 1, np.complex128)
    roughness = missing = 0.0
    for part, count in gridded:
        folded = np.bincount(np.arange(len(part.weights)) % length, part.weights, length)
        spectrum *= np.fft.rfft(folded) ** count
        roughness += count * math.sqrt(float((folded**2).sum()))
        missing += count * math.log1p(part.slack / float(part.weights.sum()))
    weights = np.fft.irfft(spectrum, length)
    weights = np.maximum(weights[(first + np.arange(size)) % length], 0.0)
    # Higham's bound on the FFT's error in the Euclidean norm, a power of n counted as n factors.
    rounding = 16 * _UNIT_ROUNDOFF * math.log2(length) * math.sqrt(length) * (roughness + 1)
    slack = float(weights.sum()) * math.expm1(missing) + 2 * TAIL + rounding
    return Tilted(origin + first * step, step, weights, slack)


def repeat(block: Callable[[int], Tilted], count: int) -> list[Part]:
    """Split the sum of `count` independent copies of a loss into parts, which `add` can add up.

    `block(k)` must return the distribution of the sum of BLOCK^k copies. `count` is written in base
    BLOCK. Each digit d > 0 at place k gives one part: d times `block(k)`.
    """
    parts, level = [], 0
    while count:
        count, digit = divmod(count, BLOCK)
        if digit:
            parts.append((block(level), digit))
        level += 1
    return parts


def _window(parts: Sequence[Part]) -> tuple[float, float]:
    """Return an interval outside which a sum of independent losses has almost no mass.

    The mass is at most `TAIL` on each side. Each of `parts` is the distribution of one loss, and
    the number of such losses in the sum.
    """
    lowest = math.fsum(n * p.origin for p, n in parts)
    highest = lowest + math.fsum(n * p.step * (len(p.weights) - 1) for p, n in parts)
    deviation = math.sqrt(math.fsum(n * p.variance() for p, n in parts))
    if deviation <= 1e-12 * (highest - lowest):
        return lowest, highest
    orders = [factor * math.sqrt(2 * _LOG_TAIL) / deviation for factor in _FACTORS]

    def bound(order: float) -> float:
        return (math.fsum(n * p.log_moment(order) for p, n in parts) + _LOG_TAIL) / order

    high = _lowest(bound, orders)
    low = -_lowest(lambda order: -bound(-order), orders)
    return max(low, lowest), min(high, highest)


def _lowest(bound: Callable[[float], float], orders: Sequence[float]) -> float:
    # The search starts at the order that is best for a Gaussian, and continues in either direction
    # until the value rises. A moment's logarithm is convex, so no lower value follows.
    first = _FACTORS.index(1.0)
    best = bound(orders[first])
    for way in (orders[first + 1 :], orders[:first][::-1]):
        for order in way:
            value = bound(order)
            if not value < best:
                break
            best = value
    return best

"""The distribution of a release's privacy loss, from which the cost of many releases follows.

For two inputs with the output distributions P and Q, the loss of an output o is log P(o)/Q(o). The
loss's distribution under P determines the whole privacy curve of the pair,

    delta(eps) = sup_S P(S) - e^eps Q(S) = E_P[max(0, 1 - e^(eps - loss))].

Independent releases add their losses. A distribution dominates a mechanism if its curve is nowhere
below the curve of any pair of inputs. If each release is dominated, the sum of the dominating
losses dominates the composed mechanism (Zhu, Dong, Wang: Optimal Accounting of Differential Privacy
via Characteristic Function, 2022, theorem 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float64s
from fedveil.base.validate import integer, non_negative, positive, within
from fedveil.errors import InvalidValue

#: Probabilities and curve values from a caller count as correct to this relative error.
RELATIVE_ERROR = 1e-12
#: The masses of a distribution sum to 1 up to this error.
SUM_ERROR = 1e-12
#: The grid has at most this many points, and about `_POINTS_PER_DEVIATION` per deviation.
_MAX_POINTS = 1 << 15
_POINTS_PER_DEVIATION = 256
#: A smaller probability has lost its digits and counts as 0.
_VANISHED = 1e-290


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """A distribution of privacy losses on a grid, which dominates a release.

    So it never understates a loss of the release. The loss `step * (low + k)` has the probability
    `masses[k]`, and an infinite loss the probability `infinite`. The constructors round losses up.

        >>> from fedveil.privacy import LossDistribution
        >>> flip = LossDistribution.from_laws([[0.75, 0.25], [0.25, 0.75]])  # a row for each input
        >>> 1.0986 < flip.largest < 1.0987  # ln 3
        True
    """

    step: float
    low: int
    masses: Float64s
    infinite: float = 0.0

    def __post_init__(self) -> None:
        positive("step", self.step)
        integer("low", self.low, -(1 << 62), 1 << 62)
        within("infinite", self.infinite, 0, 1)
        masses = np.array(self.masses, np.float64)
        if masses.ndim != 1 or not masses.size or not (masses >= 0).all():
            raise InvalidValue("masses is not one row of probabilities")
        total = float(masses.sum()) + self.infinite
        if not abs(total - 1) <= SUM_ERROR:
            raise InvalidValue(f"masses and infinite sum to {total!r}, not 1")
        masses.flags.writeable = False
        object.__setattr__(self, "masses", masses)
        object.__setattr__(self, "_hash", hash((self.step, self.low, masses.tobytes())))

    def __hash__(self) -> int:
        return int(self._hash)  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LossDistribution):
            return NotImplemented
        return (
            (self.step, self.low, self.infinite) == (other.step, other.low, other.infinite)
            and np.array_equal(self.masses, other.masses)
        )  # fmt: skip

    def distribution(self) -> LossDistribution:
        """Return the object itself, because releases must have this method (see `Described`)."""
        return self

    @property
    def losses(self) -> Float64s:
        """Return the loss that belongs to each entry of `masses`."""
        return self.step * (self.low + np.arange(len(self.masses), dtype=np.float64))

    @property
    def largest(self) -> float:
        """Return the largest finite loss with a positive probability, or 0 if there is none."""
        return float(self.losses[np.flatnonzero(self.masses)[-1]]) if self.masses.any() else 0.0

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta that holds at `epsilon`: a point of the privacy curve."""
        above = self.losses - epsilon
        excess = self.masses[above > 0] @ -np.expm1(-above[above > 0])
        return min(1.0, float(excess) + self.infinite)

    @classmethod
    def from_curve(cls, deltas: npt.ArrayLike, step: float, low: int) -> LossDistribution:
        """Return the distribution whose privacy curve is linear in e^eps between given points.

        `deltas[k]` is an upper bound on a mechanism's curve at `eps = step * (low + k)`. That curve
        is convex in e^eps, so it is below the lines between the points. The last delta becomes the
        probability of an infinite loss (Doroshenko et al.: Connect the Dots, 2022, algorithm 1).
        """
        curve = np.asarray(deltas, np.float64)
        step = positive("step", step)
        if curve.ndim != 1 or not curve.size or not ((curve >= 0) & (curve <= 1)).all():
            raise InvalidValue("deltas is not one row of values in [0, 1]")
        curve = np.maximum.accumulate(curve[::-1])[::-1]
        # P[loss > eps_k] = delta_k + Q-part, and the slope of the chord gives the Q-part. The
        # rounding error of the differences is added to it, so that it cannot hide any loss.
        drops = curve - np.append(curve[1:], curve[-1]) + 2 * RELATIVE_ERROR * curve
        drops[-1] = 0.0
        tails = curve * (1 + RELATIVE_ERROR) + drops / np.expm1(step)
        tails = np.minimum(1.0, np.maximum.accumulate(tails[::-1])[::-1])
        return cls(step, low, -np.diff(tails, prepend=1.0), float(tails[-1]))

    @classmethod
    def from_laws(cls, laws: npt.ArrayLike, epsilon: float | None = None) -> LossDistribution:
        """Return a distribution that dominates all ordered pairs of rows of the table `laws`.

        Row i is the output distribution of input i, with entries correct to a relative 1e-12. An
        output that only one of two inputs can produce has infinite loss. If the mechanism is known
        to be `epsilon`-differentially private, there is no such output. A probability of 0 is then
        an underflow, and the loss is `epsilon`.
        """
        # All pairs are compared, and the pointwise largest of their privacy curves is taken, so no
        # pair is assumed to be the worst. A mixture of inputs (random rounding before the
        # mechanism) is covered too, since the curves are jointly convex.
        table = _table(laws)
        largest, deviation = _extent(table)
        if epsilon is None:
            # Every grid includes a loss of 0. Others may be larger by the table's own error.
            largest = largest + 2 * RELATIVE_ERROR if largest else 1.0
        elif largest > non_negative("epsilon", epsilon) * (1 + 1e-9) + 1e-9:
            raise InvalidValue(f"epsilon = {epsilon!r} is below the table's loss, {largest!r}")
        else:
            largest = float(epsilon)
        if largest == 0.0:
            return cls(1.0, 0, np.ones(1))
        # Both ends are grid points, so rounding adds nothing for a mechanism that reaches its
        # largest loss.
        wanted = max(deviation / _POINTS_PER_DEVIATION, 2 * largest / _MAX_POINTS)
        high = max(32, math.ceil(largest / wanted))
        from fedveil.privacy.pairwise_curve import (  # imports numba: a second
            largest_curve,
            ordered_pairs,
        )

        curve = largest_curve(
            table, ordered_pairs(table), largest, high,
            error=2 * RELATIVE_ERROR, infinite=epsilon is None,
        )  # fmt: skip
        return cls.from_curve(np.minimum(curve, 1.0), largest / high, -high)


def _table(laws: npt.ArrayLike) -> Float64s:
    table = np.asarray(laws, np.float64)
    if table.ndim != 2 or len(table) < 2 or not (table >= 0).all():
        raise InvalidValue("laws is not a table of two rows of probabilities or more")
    sums = table.sum(axis=1)
    if not (abs(sums - 1) <= 10 * RELATIVE_ERROR).all():
        wrong = float(sums[np.argmax(abs(sums - 1))])
        raise InvalidValue(f"laws has a row that sums to {wrong!r}, not 1")
    return np.where(table < _VANISHED, 0.0, table)


def _extent(table: Float64s) -> tuple[float, float]:
    """Return the largest finite loss between two rows of `table`, and a typical loss of row 0.

    Row i is the output distribution P_i of input i. For each other row i, the root mean square of
    the finite losses ln P_0(o) / P_i(o) is computed, over outputs o drawn from P_0. The typical
    loss is the largest of these.
    """
    possible = table > 0
    logs = np.log(np.where(possible, table, 1.0))
    highest = np.where(possible, logs, -np.inf).max(axis=0)
    lowest = np.where(possible, logs, np.inf).min(axis=0)
    largest = float((highest - lowest)[possible.any(axis=0)].max())
    squares = np.where(possible & possible[0], logs[0] - logs, 0.0) ** 2
    return largest, float((squares * table[0]).sum(axis=1).max()) ** 0.5

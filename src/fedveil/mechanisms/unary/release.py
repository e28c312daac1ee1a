"""Describes the release of one parameter's unary report, for a ledger."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from fedveil.mechanisms.unary.state_sum import MAX_TABLE_CELLS, sum_laws
from fedveil.privacy.loss_distribution import LossDistribution


@dataclass(frozen=True)
class UnaryRelease:
    """The release of one parameter's report, with a loss distribution that a ledger can compose.

    The parameter's state is a whole number from -`cells` to `cells`. Its one-hot code has one bit
    for each state. The bit of the parameter's own state is 1 with probability `p`, any other bit
    with probability `q`. If `report` is "bits", the report has all bits, and `epsilon` is their
    privacy loss. If it is "sum", the report has only the sum of the states whose bits are 1. The
    loss distribution is the worst over all pairs of states. For a sum with `cells` above 127, it is
    that of the bits, which is an upper bound.
    """

    p: Fraction
    q: Fraction
    cells: int
    report: str
    epsilon: float

    def distribution(self) -> LossDistribution:
        return _distribution(self)


@lru_cache(maxsize=32)
def _distribution(release: UnaryRelease) -> LossDistribution:
    if release.report == "sum" and release.cells <= MAX_TABLE_CELLS:
        laws = sum_laws(release.p, release.q, release.cells)
    else:
        laws = _two_bits(release.p, release.q)
    return LossDistribution.from_laws(laws, release.epsilon)


def _two_bits(p: Fraction, q: Fraction) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the distribution of the bits of two states, v and w, in a perturbed one-hot code.

    The bit of the parameter's own state is 1 with probability `p`, any other bit with probability
    `q`. Row 0 is for a parameter in state v, row 1 for a parameter in state w. Codes of v and w
    differ only in these two bits. The columns are their values 00, 01, 10 and 11.
    """
    own, other = (1 - p, p), (1 - q, q)
    return np.array(
        [[float(a * b) for a in own for b in other], [float(a * b) for a in other for b in own]]
    )

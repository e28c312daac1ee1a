"""What whoever reads one client's report makes of it: the best of adversaries, as an object.

Every attack on reports is given a reading and nothing else of a protection, so that it takes any
position, and any of a user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedveil.base.arrays import Float32s, Float64s, Int8s


@dataclass(frozen=True)
class Reading:
    """One report, read.

    `estimate` is the update as the report alone tells it. `weight` is what each of its entries is
    worth beside the others: proportional to the inverse variance of its noise, 0 where the report
    says nothing of the entry. `scaled` says whether the estimate has the update's size, or only
    its direction. `log_likelihood` is ln Pr[this report | update], up to a constant that is the
    same for all updates; None where a protection does not state it.

    `truths(update)` says of a client that is known to have had `update` which of its report's
    random choices were told true: for each of `Protection.choices` an array of 1, 0, or -1 where
    nobody can tell.
    """

    estimate: Float64s
    weight: Float64s
    scaled: bool = True
    log_likelihood: Callable[[Float32s], float] | None = field(default=None, compare=False)
    truths: Callable[[Float32s], Sequence[Int8s]] | None = field(default=None, compare=False)

    @classmethod
    def exact(cls, update: Float32s) -> Reading:
        """The update itself."""

        def log_likelihood(candidate: Float32s) -> float:
            return 0.0 if np.array_equal(candidate, update) else -np.inf

        values = update.astype(np.float64)
        return cls(values, np.ones_like(values), log_likelihood=log_likelihood)

    @classmethod
    def nothing(cls, dimension: int) -> Reading:
        """A report that is as likely on every update."""
        empty = np.zeros(dimension)
        return cls(empty, empty, log_likelihood=lambda candidate: 0.0)

    @property
    def empty(self) -> bool:
        """Whether it says nothing of any entry."""
        return not self.weight.any()


@dataclass(frozen=True)
class Domain:
    """The vectors that a round's sum is released as, before anybody decodes it.

    `encode` takes an update there and changes no length; `decode` is its transpose, and may give
    more entries than an update has: no update reaches those. `moves`: every round has its own.
    """

    length: int
    encode: Callable[[Float64s], Float64s]
    decode: Callable[[Float64s], Float64s]
    moves: bool = False

    @classmethod
    def plain(cls, dimension: int) -> Domain:
        """That of updates themselves."""
        return cls(dimension, lambda update: update, lambda released: released)

"""The information that an attacker can get from one client's report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedveil.base.array_types import Float32s, Float64s, Int8s


@dataclass(frozen=True)
class Reading:
    """The information that an attacker gets from one report.

    - `estimate` is the best estimate of the update from this report alone.
    - `weight` is the reliability of each entry of `estimate`: proportional to the inverse variance
      of its noise, or 0 if the report says nothing about the entry.
    - `scaled` is False if the estimate has only the direction of the update and not its length.
    - `log_likelihood` maps an update to ln Pr[this report | update], up to a constant. It is None
      if the protection does not state it.
    - `truths` maps the client's true update to the outcomes of the random choices in its report:
      for each of `Protection.choices`, an array of 1 (truthful), 0 (not) or -1 (unknown).

        >>> import numpy as np
        >>> from fedveil.protections.reading import Reading
        >>> Reading.exact(np.array([0.5, -2.0], np.float32)).estimate.tolist()
        [0.5, -2.0]
    """

    estimate: Float64s
    weight: Float64s
    scaled: bool = True
    log_likelihood: Callable[[Float32s], float] | None = field(default=None, compare=False)
    truths: Callable[[Float32s], Sequence[Int8s]] | None = field(default=None, compare=False)

    @classmethod
    def exact(cls, update: Float32s) -> Reading:
        """Return the `Reading` of a report that reveals the client's update exactly."""

        def log_likelihood(candidate: Float32s) -> float:
            return 0.0 if np.array_equal(candidate, update) else -np.inf

        values = update.astype(np.float64)
        return cls(values, np.ones_like(values), log_likelihood=log_likelihood)

    @classmethod
    def nothing(cls, dimension: int) -> Reading:
        """Return the `Reading` of a report that reveals nothing about the update."""
        empty = np.zeros(dimension)
        return cls(empty, empty, log_likelihood=lambda candidate: 0.0)

    @property
    def empty(self) -> bool:
        """True if the report says nothing about any entry."""
        return not self.weight.any()


@dataclass(frozen=True)
class Domain:
    """The vector space in which a round's sum is released, before it is decoded.

    `length` is its number of dimensions. `encode` pads an update with zeros if needed, maps it into
    the space, and preserves its norm. `decode` is the transpose of this map, and keeps the padding.
    `moves` is True if the space differs from round to round.
    """

    length: int
    encode: Callable[[Float64s], Float64s]
    decode: Callable[[Float64s], Float64s]
    moves: bool = False

    @classmethod
    def plain(cls, dimension: int) -> Domain:
        """Return the space in which updates are released as they are, with `dimension` entries."""
        return cls(dimension, lambda update: update, lambda released: released)

"""The methods of a protection by which an audit learns, during a run, what a round releases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.privacy.choice_audit import Choice
from fedveil.protections.reading import Domain


class Outcome(Protocol):
    """The part of a round's aggregate that an audit needs."""

    @property
    def update(self) -> Float64s:
        """The averaged update."""

    @property
    def reports(self) -> int:
        """The number of reports that the update combines."""

    @property
    def divisor(self) -> int | None:
        """The number that divided the sum to get the update. None means it equals `reports`."""

    @property
    def released(self) -> Int64s | None:
        """The sum of the reports before it was decoded to the update. None if it was not saved."""


class Audited(ABC):
    """The methods of a protection that an audit calls.

    If `audited` is True, a round's aggregate must include the released sum. An audit sets it.
    """

    audited: bool = False

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The number of entries of an update."""

    @classmethod
    def unauditable(cls, settings: Any) -> str | None:
        """Return a text that says which settings an audit needs, or None if `settings` suit it."""
        return None

    def choices(self) -> Sequence[Choice]:
        """Return the kinds of random choices in a report, which an audit compares with the truth.

        An example is a bit that may be flipped. An empty result means that there are none to
        compare.
        """
        return ()

    def domain(self, round: int) -> Domain:
        """Return the vector space in which a round's sum is released."""
        return Domain.plain(self.dimension)

    def released(self, aggregate: Outcome) -> Float64s:
        """Return the noisy sum of a round as a vector of the space that `domain()` returns.

        `aggregate` is the round's result.
        """
        return aggregate.reports * aggregate.update.astype(np.float64)

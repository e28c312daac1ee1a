"""The part of a protection that an audit inside a run needs: released values and their domain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.privacy.choice_audit import Choice
from fedveil.protections.reading import Domain


class Outcome(Protocol):
    """The part of a round's aggregate that an audit sees."""

    @property
    def update(self) -> Float64s:
        """The averaged update."""

    @property
    def reports(self) -> int:
        """The number of reports in the update."""

    @property
    def divisor(self) -> int | None:
        """The number by which the sum was divided. None if it is `reports`."""

    @property
    def released(self) -> Int64s | None:
        """The sum before it was decoded to the update. None if it was not saved."""


class Audited(ABC):
    """A protection as an audit sees it. The defaults suit one that releases unperturbed updates."""

    #: True if a round's aggregate must include the released sum. An audit sets it.
    audited: bool = False

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The number of entries of an update."""

    @classmethod
    def unauditable(cls, settings: Any) -> str | None:
        """Return the settings that would allow an audit, or None if these do."""
        return None

    def choices(self) -> Sequence[Choice]:
        """Describe the random choices in a report, in the order of `Reading.truths`."""
        return ()

    def domain(self, round: int) -> Domain:
        """Return the domain in which a round's sum is released."""
        return Domain.plain(self.dimension)

    def released(self, aggregate: Outcome) -> Float64s:
        """Return the round's sum as the public sees it: with its noise, as a vector in `domain`."""
        return aggregate.reports * aggregate.update.astype(np.float64)

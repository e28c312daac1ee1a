"""The part of a protection that an audit inside a run asks: what it releases, and where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fedveil.base.arrays import Float64s, Int64s
from fedveil.privacy.choice_audit import Choice
from fedveil.protections.reading import Domain


class Outcome(Protocol):
    """The part of a round's aggregate that an audit sees."""

    @property
    def update(self) -> Float64s:
        """The averaged update."""

    @property
    def reports(self) -> int:
        """The number of reports in it."""

    @property
    def released(self) -> Int64s | None:
        """The sum before it was decoded, if it was kept."""


class Audited(ABC):
    """A protection as an audit sees it. The defaults suit one that releases updates as they are."""

    #: True if a round's aggregate must keep what was released. An audit sets it.
    audited: bool = False

    @property
    @abstractmethod
    def dimension(self) -> int:
        """How many entries an update has."""

    @classmethod
    def unauditable(cls, settings: Any) -> str | None:
        """Return which other settings an audit needs, or None: reports must be private alone."""
        return None

    def choices(self) -> Sequence[Choice]:
        """Return the random choices of a report whose truth `Reading.truths` tells."""
        return ()

    def domain(self, round: int) -> Domain:
        """Return where the sum of a round lies when it is released."""
        return Domain.plain(self.dimension)

    def released(self, aggregate: Outcome) -> Float64s:
        """Return what everybody sees of a round's sum, noise included, in `domain`."""
        return aggregate.reports * aggregate.update.astype(np.float64)

"""What an experiment of the sources is, and what repeating it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from fedveil.errors import InvalidValue
from fedveil.pages.plot import Plot
from fedveil.pages.table import Table

#: `full` is the source's own size; `small` finishes in minutes and keeps every trend visible;
#: `medium` is as much of the source's own size as two cores do in about half an hour.
Scale = Literal["small", "medium", "full"]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Verdict:
    """A figure or a trend of the source beside ours; `why` says why they differ, or what agrees."""

    what: str
    source: str
    ours: str
    agrees: bool
    why: str

    @classmethod
    def of(
        cls, agrees: bool, what: str, source: str, ours: str, *, same: str, other: str
    ) -> Verdict:
        """With its reason: `same` where they agree, `other` where they do not."""
        return cls(what, source, ours, bool(agrees), same if agrees else other)


@dataclass(frozen=True)
class Outcome:
    """What was run, in sentences, and what came of it."""

    ran: str
    verdicts: Sequence[Verdict]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    pictures: Sequence[Path] = field(default_factory=tuple)


class Experiment(ABC):
    """One experiment: its own settings are the source's."""

    name: ClassVar[str]
    #: What it shows, in a sentence, and where in the sources it stands.
    what: ClassVar[str]
    source: ClassVar[str]
    scales: ClassVar[Sequence[Scale]] = ("small", "full")

    def check(self, scale: Scale) -> None:
        """Refuse a scale at which it cannot be repeated."""
        if scale not in self.scales:
            raise InvalidValue(
                f"{self.name} has no scale {scale}; it is repeated at {' or '.join(self.scales)}"
            )

    @abstractmethod
    def estimate_s(self, scale: Scale) -> float:
        """About how many seconds it takes on two cores."""

    @abstractmethod
    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Do it; what is done already in `folder` is not done again, `tell` hears what is next."""

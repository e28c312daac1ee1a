"""The interface of the sources' experiments, and the result of repeating one."""

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
    """The source's number or trend beside ours. `why` explains the difference or the agreement."""

    what: str
    source: str
    ours: str
    agrees: bool
    why: str

    @classmethod
    def of(
        cls, agrees: bool, what: str, source: str, ours: str, *, same: str, other: str
    ) -> Verdict:
        """Make a verdict with its reason: `same` if they agree, otherwise `other`."""
        return cls(what, source, ours, bool(agrees), same if agrees else other)


@dataclass(frozen=True)
class Outcome:
    """A description of the runs, in sentences, and their results."""

    ran: str
    verdicts: Sequence[Verdict]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    pictures: Sequence[Path] = field(default_factory=tuple)


class Experiment(ABC):
    """One experiment. Its default settings are the source's."""

    name: ClassVar[str]
    #: What it shows, in a sentence, and its place in the sources.
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
        """Estimate its seconds on two cores."""

    @abstractmethod
    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Run it. Finished parts in `folder` are not repeated. `tell` receives the next step."""

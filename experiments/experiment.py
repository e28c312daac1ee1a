"""The interface of the experiments from the sources, and the result of repeating one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from fedveil.errors import InvalidValue
from fedveil.pages.plot import Plot
from fedveil.pages.read_run import ReadRun
from fedveil.pages.table import Table
from fedveil.studies.checkout import Scale as Scale


class NewPart(str):
    """A line about a part of an experiment that is computed now, such as a run that is trained.

    From such a line on, time is added to the experiment's duration even if it was finished before.
    """

    __slots__ = ()


Tell = Callable[[str], None]
Answer = Literal["agrees", "differs", "says nothing"]


@dataclass(frozen=True)
class Verdict:
    """A number or trend in the source, beside ours.

    `held_to` is the bound that decides, and `why` the reason. The answer is "says nothing" if a run
    that had to learn did not, or if the seeds cannot decide.
    """

    what: str
    source: str
    ours: str
    held_to: str
    answer: Answer
    why: str

    @classmethod
    def of(
        cls,
        agrees: bool,
        what: str,
        source: str,
        ours: str,
        *,
        held_to: str,
        same: str,
        other: str,
        nothing: str = "",
    ) -> Verdict:
        """Make a verdict. Its reason is `same` if the results agree, and `other` if they differ.

        If `nothing` is not empty, it is the reason why the runs say nothing.
        """
        if nothing:
            return cls(what, source, ours, held_to, "says nothing", nothing)
        if agrees:
            return cls(what, source, ours, held_to, "agrees", same)
        return cls(what, source, ours, held_to, "differs", other)

    @property
    def agrees(self) -> bool:
        return self.answer == "agrees"


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment. `ran` describes its runs in sentences.

    `seeds` is the number of training runs behind each figure. It is 0 if nothing was trained, or
    if figures have different numbers, which `ran` then states. `curves` are the runs whose metrics
    are saved beside the page.
    """

    ran: str
    verdicts: Sequence[Verdict]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    pictures: Sequence[Path] = field(default_factory=tuple)
    seeds: int = 1
    curves: Mapping[str, ReadRun] = field(default_factory=dict)


class Experiment(ABC):
    """An experiment from a source. Its default settings are those of the source."""

    name: ClassVar[str]
    #: What it shows, in a sentence, and its place in the sources.
    what: ClassVar[str]
    source: ClassVar[str]
    scales: ClassVar[Sequence[Scale]] = ("small", "full")
    #: Why a page of this scale is smaller than the source's experiment. Without an entry, the
    #: reason is the duration of scale `full`.
    smaller: ClassVar[Mapping[Scale, str]] = {}
    #: The metrics that are saved beside the page for all runs, if the page needs no more of them.
    saved_metrics: ClassVar[Sequence[str]] = ()

    def check(self, scale: Scale) -> None:
        """Raise an error if the experiment cannot be repeated at this scale."""
        if scale not in self.scales:
            raise InvalidValue(
                f"{self.name} has no scale {scale}; it is repeated at {' or '.join(self.scales)}"
            )

    @abstractmethod
    def estimate_s(self, scale: Scale) -> float:
        """Estimate how many seconds the experiment takes on two cores."""

    @abstractmethod
    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Run the experiment, without repeating parts that are finished in `folder`. `tell` is
        called with a description of each step: a `NewPart` if it is not read from the folder."""

"""What a run that has ended leaves to whoever called it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedveil.errors import MissingExtra
from fedveil.federated.job import Job
from fedveil.pages.notebook_view import of_run, plotly
from fedveil.pages.read_run import read_run
from fedveil.privacy.finding import Finding
from fedveil.privacy.ledger import Ledger, Line
from fedveil.record.recorder import Record


@dataclass(frozen=True)
class Run:
    """A run that has ended: its metrics (a record a round), trained model, folder and ledger."""

    job: Job
    metrics: list[Record]
    model: nn.Module
    folder: Path
    ledger: Ledger
    #: Why it ended before its last round; None where it did not.
    stopped: str | None = None
    #: What an audit's canaries found, where the job has any.
    audit: Finding | None = None
    #: What it cost by other accounts than the ledger's.
    others: Sequence[Line] = ()

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        return of_run(read_run(self.folder))

    def frame(self) -> Any:
        """The records as a table of pandas, a row a round."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise MissingExtra("pandas", "notebook", "Run.frame") from None
        return DataFrame(self.metrics)

    def plot(self, name: str | None = None) -> Any:
        """The figure that decides, or another by its name, round by round: plotly's figure."""
        return plotly(read_run(self.folder), name)

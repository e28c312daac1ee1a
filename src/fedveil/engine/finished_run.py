"""The result of a finished run."""

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
    """A finished run: its metrics (one record per round), trained model, folder and ledger.

    `stopped` is the reason for an early end, `audit` the result of its canaries, and `others` has
    the costs by other accounts than the ledger's.

        >>> from tempfile import TemporaryDirectory
        >>> import fedveil
        >>> settings = ["rounds=2", "clients.number=30", "model=logistic", "simulation.workers=0"]
        >>> job = fedveil.Job.load(None, settings)
        >>> with TemporaryDirectory() as folder:
        ...     run = fedveil.simulate(job, f"{folder}/run")
        >>> run.stopped is None, run.ledger.epsilon("run")
        (True, inf)
    """

    job: Job
    metrics: list[Record]
    model: nn.Module
    folder: Path
    ledger: Ledger
    #: The reason for ending before the last round, or None.
    stopped: str | None = None
    #: The finding of an audit's canaries, if the job has any.
    audit: Finding | None = None
    #: The run's cost by other accounts than the ledger's.
    others: Sequence[Line] = ()

    def _repr_html_(self) -> str:
        """Return the run as HTML for a notebook."""
        return of_run(read_run(self.folder))

    def frame(self) -> Any:
        """Return the records as a pandas DataFrame, one row per round."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise MissingExtra("pandas", "notebook", "Run.frame") from None
        return DataFrame(self.metrics)

    def plot(self, name: str | None = None) -> Any:
        """Return a plotly figure of one metric by round: `name`, by default the deciding metric."""
        return plotly(read_run(self.folder), name)

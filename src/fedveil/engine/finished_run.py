"""The result of a finished run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedveil.errors import InvalidValue, MissingExtra
from fedveil.federated.job import Job
from fedveil.privacy.finding import Finding
from fedveil.privacy.ledger import Ledger, Line
from fedveil.privacy.loss import format_epsilon
from fedveil.record.metric_names import deciding
from fedveil.record.recorder import Record
from fedveil.record.run_folder import RunFolder


@dataclass(frozen=True)
class Presentation:
    """Functions that show a run to its user. The engine calls them and shows nothing itself.

    - `page` writes the page of a run that has ended. It logs a failure with its second argument.
    - `html` returns the run in a folder as HTML for a notebook.
    - `plot` returns a plotly figure of one metric of the run in a folder. By default (None), it
      shows the metric that decides which model is best.
    """

    page: Callable[[RunFolder, Callable[[str], None]], None]
    html: Callable[[Path], str]
    plot: Callable[[Path, str | None], Any]


@dataclass(frozen=True)
class Run:
    """A finished run: its metrics (one record per round), trained model, folder and ledger.

    `stopped` is the reason for an early end, or None. `audit` is the result of the run's canaries,
    or None without canaries. `others` are the run's privacy costs under other assumptions than the
    ledger's. `kept_round` is the round of the saved model if the job keeps the best model, or None
    if it keeps the last.

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
    #: The run's cost under other assumptions than the ledger's (`other_accounts`).
    others: Sequence[Line] = ()
    #: The round whose model was saved if the job keeps the best model, otherwise None.
    kept_round: int | None = None
    #: The functions that show the run, or None if it was started without them.
    presentation: Presentation | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Return the folder, protection, quality and epsilon, and not every key and record."""
        last = self.metrics[-1] if self.metrics else {}
        metric, _ = deciding(last)
        quality = f", {metric}={last[metric]:.4g}" if metric in last else ""
        delta = self.job.privacy.delta
        epsilon = format_epsilon(self.ledger.epsilon_every_round(delta))
        return (
            f"Run(folder={str(self.folder)!r}, protection={self.job.protection.name!r}, "
            f"rounds={len(self.metrics)}{quality}, epsilon={epsilon})"
        )

    def _repr_html_(self) -> str | None:
        return None if self.presentation is None else self.presentation.html(self.folder)

    def frame(self) -> Any:
        """Return the records as a pandas DataFrame, one row per round."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise MissingExtra("pandas", "notebook", "Run.frame") from None
        return DataFrame(self.metrics)

    def plot(self, name: str | None = None) -> Any:
        """Return a plotly figure of the metric `name` by round.

        By default, it shows the metric that decides which model is best. Raises `InvalidValue` if
        the run has no `presentation`. Runs of `fedveil.simulate` and `fedveil.resume` have one.
        """
        if self.presentation is None:
            raise InvalidValue("this run has no plots: start it with fedveil.simulate")
        return self.presentation.plot(self.folder, name)

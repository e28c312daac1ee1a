"""What a run that has ended leaves to whoever called it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedveil.federated.job import Job
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

"""A run's folder as anybody may read it, whether the run goes on, has ended or was cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.errors import RunFolderError
from fedveil.privacy.finding import Finding
from fedveil.record.finding_lines import read_findings
from fedveil.record.recorder import Record, read_whole_lines
from fedveil.record.run_folder import EVENTS, METRICS, MODEL, job_of
from fedveil.settings.yaml_file import read


@dataclass(frozen=True)
class ReadRun:
    """What a run's folder holds.

    `job` has every key. A line that a run has not finished writing is not among `records`.
    """

    folder: Path
    job: Mapping[str, Any]
    records: Sequence[Record]
    findings: Sequence[Finding]
    events: Sequence[str]

    @property
    def finished(self) -> bool:
        """Whether the run has ended with a model."""
        return (self.folder / MODEL).is_file()

    @property
    def last(self) -> Record:
        """The latest figure of every kind: quality may be older than the last round."""
        last: Record = {}
        for record in self.records:
            last |= record
        return last

    def figures(self, key: str) -> tuple[list[int], list[float]]:
        """The rounds whose record has that figure, and the figure in each."""
        having = [record for record in self.records if key in record]
        return [record["round"] for record in having], [record[key] for record in having]


def read_run(folder: str | Path) -> ReadRun:
    """Read a run's folder; raises `RunFolderError` where there is none."""
    path = Path(folder)
    job = read(job_of(path))
    try:
        lines = (path / METRICS).read_text("utf-8") if (path / METRICS).exists() else ""
        events = (path / EVENTS).read_text("utf-8") if (path / EVENTS).exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from None
    records = read_whole_lines(lines, path / METRICS)
    return ReadRun(path, job, records, read_findings(path), events.splitlines())

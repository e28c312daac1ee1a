"""A run's folder as anybody may read it, whether the run goes on, has ended or was cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedveil._untrusted import MOST_LINES_BYTES, read_bytes
from fedveil.privacy.finding import Finding
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import ACCOUNTS, read_accounts
from fedveil.record.finding_lines import FINDINGS, read_findings
from fedveil.record.recorder import Record, read_whole_lines
from fedveil.record.run_folder import EVENTS, METRICS, MODEL, job_of
from fedveil.record.sealed_message import intact
from fedveil.settings.yaml_file import read

#: How the event begins that says that clients were on other machines.
DEPLOYED = "clients are Flower SuperNodes"
#: How the event begins that says that an example is several arrays, and which.
SEVERAL = "an example has several inputs: "
#: How the event begins that names a model's buffers, which no noise is added to.
BUFFERS = "buffers averaged with the parameters: "
#: What is said of a run that has had all its rounds.
_LAST = "the last"
#: How the events begin that say that a run ends, and that it begins or goes on.
_ENDS, _BEGINS = ("finished after ", "ended after "), ("began", "went on after ", "train from ")


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
    accounts: Sequence[Line] = ()

    @property
    def finished(self) -> bool:
        """Whether the run has ended with a model."""
        return (self.folder / MODEL).is_file()

    @property
    def deployed(self) -> bool:
        """Whether its clients were on other machines."""
        return bool(self.said(DEPLOYED))

    @property
    def ended(self) -> str | None:
        """How it ended, as its events say; None while it goes on, or if it was killed."""
        for event in reversed(self.events):
            _, _, text = event.partition(" ")
            if text.startswith(_ENDS):
                return text
            if text.startswith(_BEGINS):
                return None
        return None

    @property
    def stopped(self) -> str | None:
        """Why it ended before its last round; None where it did not, or has not."""
        _, _, why = (self.ended or "").partition(": ")
        return why if why and why != _LAST else None

    def said(self, beginning: str) -> str:
        """The rest of the last event that begins so; empty where there is none."""
        for event in reversed(self.events):
            _, _, text = event.partition(" ")
            if text.startswith(beginning):
                return text.removeprefix(beginning)
        return ""

    @cached_property
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
    return _read(path, read(job_of(path)))


def read_party(run: ReadRun, folder: Path) -> ReadRun:
    """Read what a party of a vertical run has written, in a folder of its own in the run's."""
    return _read(folder, run.job)


def _read(path: Path, job: Mapping[str, Any]) -> ReadRun:
    records = read_whole_lines(_whole_lines(path / METRICS), path / METRICS)
    events = _whole_lines(path / EVENTS).splitlines()
    with intact(path / FINDINGS, path / ACCOUNTS):
        return ReadRun(path, job, records, read_findings(path), events, read_accounts(path))


def _whole_lines(path: Path) -> str:
    """A file's text without a last line that is being written; empty where there is no file."""
    with intact(path):
        data = read_bytes(path, MOST_LINES_BYTES) if path.exists() else b""
        return data[: data.rfind(b"\n") + 1].decode()

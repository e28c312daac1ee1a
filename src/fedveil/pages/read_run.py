"""Reads a run's folder, during the run or afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

from fedveil.base.untrusted import MOST_JOB_BYTES, MOST_LINES_BYTES, read_bytes
from fedveil.errors import RunFolderError
from fedveil.privacy.finding import Finding
from fedveil.privacy.ledger import Line
from fedveil.record import event_log
from fedveil.record.account_lines import ACCOUNTS, read_accounts
from fedveil.record.before_after import BEFORE_AFTER, BeforeAfter, read_before_after
from fedveil.record.finding_lines import FINDINGS, read_findings
from fedveil.record.logged_account import BEGINS, FINISHED, check_logged
from fedveil.record.recorder import DAMAGED, DEPLOYED, NEEDED, NO_RESULT, Record, read_whole_lines
from fedveil.record.run_folder import EVENTS, JOB, METRICS, MODEL, PRIVATE, job_of
from fedveil.record.saved_job import BEGAN
from fedveil.record.sealed_message import intact
from fedveil.record.started_rounds import read_started
from fedveil.record.vouched_metrics import Vouched
from fedveil.settings.yaml_file import read

#: Prefix of the event that names a model's buffers, which get no noise.
BUFFERS = "buffers averaged with the parameters: "
#: The text for a run that has completed all its rounds.
_LAST = "the last"
#: The beginnings of the events at the end of a run or a session.
_ENDS = (FINISHED, "ended after ")


@dataclass(frozen=True)
class ReadRun:
    """The content of a run's folder, or of one party's folder in a vertical run.

    `job` has every key, including defaults. `records` has the metrics of each round (or step), and
    `findings` the results of attacks and audits. `events` are the lines of the log. `accounts` has
    a party's privacy costs. In a federated run, it has costs that are not in the ledger. `compared`
    has metrics and texts of a language model, before and after training. `started` has the number
    of a round that was started and has no record, and the run's epsilons if all reports of that
    round were sent. It is empty if there is no such round. `private` are a party's sentences that
    no other party may see.
    """

    folder: Path
    job: Mapping[str, Any]
    records: Sequence[Record]
    findings: Sequence[Finding]
    events: Sequence[str]
    accounts: Sequence[Line] = ()
    compared: Sequence[BeforeAfter] = ()
    started: Record = field(default_factory=dict)
    private: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of the run's folder, which may differ from the job's name."""
        return self.folder.resolve().name

    @property
    def finished(self) -> bool:
        """True if the run has ended and saved its model and all other results.

        False for a finished run that was extended and has not ended again: its model is older than
        its records.
        """
        return (self.ended or "").startswith(FINISHED) and (self.folder / MODEL).is_file()

    @property
    def deployed(self) -> bool:
        """True if the run's clients were on other machines."""
        return bool(self.said(DEPLOYED))

    @property
    def ended(self) -> str | None:
        """The event that describes the run's end, or None if the run is active or was killed."""
        return _end(self.events)

    @property
    def stopped(self) -> str | None:
        """The reason why the run ended before its last round, or None."""
        _, _, why = (self.ended or "").partition(": ")
        return why if why and why != _LAST else None

    @property
    def failed(self) -> str:
        """The reason why no report of the run was usable, or "" unless the run ended so."""
        return (self.ended or "").partition(NO_RESULT)[2]

    @property
    def times(self) -> list[datetime]:
        """The times of all events. Raises ValueError if an event has no time."""
        return [datetime.fromisoformat(event.partition(" ")[0]) for event in self.events]

    @property
    def seconds(self) -> float | None:
        """The seconds from the first event to the end of the run, or None without events.

        If the run has not ended, the last event counts as its end. Pauses between interruption and
        resumption are included. Events after the first end do not count.
        """
        times = self.times
        ends = (
            i for i, event in enumerate(self.events) if event.partition(" ")[2].startswith(FINISHED)
        )
        return (times[next(ends, -1)] - times[0]).total_seconds() if times else None

    @property
    def _texts(self) -> list[str]:
        """The events, and then the sentences in `private`, without their times."""
        return [line.partition(" ")[2] for line in (*self.events, *self.private)]

    def all_said(self, beginning: str) -> list[str]:
        """Return the rest of each event that starts with `beginning`, without duplicates."""
        found = (text.removeprefix(beginning) for text in self._texts if text.startswith(beginning))
        return list(dict.fromkeys(found))

    def said(self, beginning: str) -> str:
        """Return the text after `beginning` in the last event that starts with it, or ""."""
        for text in reversed(self._texts):
            if text.startswith(beginning):
                return text.removeprefix(beginning)
        return ""

    @cached_property
    def last(self) -> Record:
        """The latest value of every metric.

        Metrics of the model may be from an earlier round: not every round evaluates the model. If a
        round was started and has no record, the epsilons include its cost.
        """
        last: Record = {}
        for record in self.records:
            last |= record
        return last | {key: value for key, value in self.started.items() if key != "round"}

    @property
    def unfinished(self) -> str:
        """A sentence about a round that was started and has no record, or "" if there is none."""
        if not self.started:
            return ""
        return (
            f"round {self.started['round']} was started and has no record: its reports may have "
            "been sent, so the epsilon counts them"
        )

    def figures(self, key: str) -> tuple[list[int], list[float]]:
        """Return the rounds that have the metric `key`, and its values in these rounds."""
        having = [record for record in self.records if key in record]
        return [record["round"] for record in having], [record[key] for record in having]


def read_run(folder: str | Path, *, growing: bool = False) -> ReadRun:
    """Read a run's folder. Raises `RunFolderError` if `folder` is not the folder of a run.

    If `growing` is True, the records of a run that has not ended may be older than its checkpoint,
    as in a copy of the folder that is being updated.
    """
    path = Path(folder)
    own = (METRICS, EVENTS, FINDINGS, ACCOUNTS, BEFORE_AFTER)
    records = any((path / name).exists() for name in own) or party_folders(path, EVENTS)
    if (path / JOB).exists() and not records:
        raise RunFolderError(f"{path} is not a run's folder: it has a job, and no run's records")
    found = _read(path, read(job_of(path)), path, growing)
    if (found.ended or "").startswith(FINISHED):  # a run that goes on checks its job itself
        refuse_edited_job(path)
    return found


def refuse_edited_job(path: Path) -> None:
    """Raise `RunFolderError` if the job of the run in `path` is not the one that it began with."""
    began = path / BEGAN
    if not began.exists():
        return
    if read_bytes(began, MOST_JOB_BYTES) != read_bytes(path / JOB, MOST_JOB_BYTES):
        raise RunFolderError(
            f"{path / JOB} was changed after the run began: it differs from {began}. Put it back"
        )


def party_folders(folder: Path, file: str) -> list[Path]:
    """Return the parties' folders in the folder of a vertical run that have a file called `file`.

    A folder with a job of its own is not a party's, but another run's.
    """
    found = sorted(path.parent for path in folder.glob(f"*/{file}"))
    return [path for path in found if not (path / JOB).exists()]


def read_party(run: ReadRun, folder: Path, *, growing: bool = False) -> ReadRun:
    """Read the records of one party of the vertical run `run`, from the party's `folder`.

    The result has the job of `run`. `growing` is as in `read_run`.
    """
    return _read(folder, run.job, run.folder, growing)


def _read(path: Path, job: Mapping[str, Any], run: Path, growing: bool) -> ReadRun:
    """Read the records in `path`, the folder of a run or of one party of a run.

    `job` has the run's settings. Error messages name `run`, the run's folder. `growing` is as in
    `read_run`.
    """
    federated = "protection" in job
    resume = f"fedveil {'run' if federated else 'vertical run'} --resume {quote(str(run))}"
    needed = NEEDED if federated else ()
    vouched = Vouched.by_checkpoint(path)
    # Read before the metrics: all records of a run that has finished by now are whole.
    over = (_end(_whole_lines(path / EVENTS).splitlines()) or "").startswith(FINISHED)
    metrics = _whole_lines(path / METRICS, ended=over)
    records = read_whole_lines(metrics, path / METRICS, None if over else resume, needed)
    with intact(path / ACCOUNTS):  # read before the log, which has its lines first
        accounts = read_accounts(path)
    events = _whole_lines(path / EVENTS).splitlines()
    if edited := event_log.edited(path / EVENTS):
        raise RunFolderError(edited)
    if over:
        check_logged(path, accounts, events)
    started: Record = {}
    if federated:
        # A deployment creates its file of started rounds before any record.
        deployed = any(event.partition(" ")[2].startswith(DEPLOYED) for event in events)
        started = read_started(
            path, records[-1]["round"] if records else 0, is_kept=deployed and not over
        )
    findings = read_findings(path)
    with intact(path / BEFORE_AFTER):
        beside = accounts, read_before_after(path), started
    private = () if federated else _whole_lines(path / PRIVATE).splitlines()
    found = ReadRun(path, job, records, findings, events, *beside, private=private)
    if federated and not records and (found.ended or "").startswith(FINISHED):
        raise RunFolderError(f"{path / METRICS} is damaged: it has no record of a round")
    if vouched is not None:
        with intact(path / METRICS):
            vouched.check(metrics.encode(), growing=growing and found.ended is None)
    return found


def _end(events: Sequence[str]) -> str | None:
    """Return the last event in `events` if it describes a run's end, or None.

    Events of other kinds may follow it.
    """
    for event in reversed(events):
        _, _, text = event.partition(" ")
        if text.startswith(_ENDS):
            return text
        if text.startswith(BEGINS):
            return None
    return None


def _whole_lines(path: Path, *, ended: bool = False) -> str:
    """Return the complete lines of a file. A run that is active or was killed may lack an end.

    If `ended` is True, raises RunFolderError for an incomplete last line: the run wrote whole ones.
    """
    with intact(path):
        data = read_bytes(path, MOST_LINES_BYTES) if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        text = whole.decode()
    if ended and len(whole) < len(data):
        line = text.count("\n") + 1
        raise RunFolderError(f"{path}, line {line}: it has no end. {DAMAGED}")
    return text

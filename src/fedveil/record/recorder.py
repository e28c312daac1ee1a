"""A run's records: one line of metrics per round, and its events."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fedveil.base.files import open_to_append, write_all
from fedveil.base.untrusted import MALFORMED, MOST_LINES_BYTES, opened
from fedveil.base.validate import integer
from fedveil.errors import MessageInvalid, MissingExtra, RunFolderError
from fedveil.record.event_log import EventLog, stamped
from fedveil.record.run_folder import EVENTS, METRICS, RunFolder, explained
from fedveil.record.sealed_message import intact
from fedveil.record.vouched_metrics import vouched_hash

Record = dict[str, Any]

#: Outcomes of clients without a report in the aggregate: counts by reason.
LOST = ("rejected", "withheld", "failed")
#: Counts by reason of reports in the aggregate without a usable update, if the run knows them.
UNUSABLE = "unusable"
#: Prefix of the event that says that clients were on other machines.
DEPLOYED = "clients are Flower SuperNodes"
#: Prefix of the event that lists the inputs of an example that has several.
SEVERAL = "an example has several inputs: "
#: Prefix of the event that says which protection to try next, as `SHORT: SENTENCE`.
ADVICE = "what next: "
#: Part of the event at the end of a run in which no report was usable. The reason follows.
NO_RESULT = " without a result: "
#: Prefix of the events that say what crosses between the parties of a vertical run.
CROSSES = "crosses: "
#: Start of the event after a test that inferred labels from the gradients that are returned.
INFERRED = "labels: privacy.label_protection"
_NUMBERS = ("clients", "reports", "dropped", "bytes_up", "bytes_up_per_client", "bytes_down")
_LEDGER = ("per_bit", "per_parameter", "per_round", "run_every_round", "run_most_drawn")
#: The keys of every record of a federated run, in their order.
NEEDED = (
    *("round", "void", "unit", "randomness", "in_clear", "rests_on_server"),
    *LOST, UNUSABLE, *_NUMBERS,
    *(f"{what}_{name}" for what in ("epsilon", "delta", "promise") for name in _LEDGER),
)  # fmt: skip
#: The keys of a record that state privacy.
PRIVACY = tuple(
    key for key in NEEDED
    if key in ("unit", "randomness", "in_clear", "rests_on_server")
    or key.startswith(("epsilon_", "delta_", "promise_"))
)  # fmt: skip


class Recorder:
    """Appends to the metrics and events in a run's folder, and to TensorBoard if requested."""

    def __init__(
        self, folder: RunFolder, kept: Metrics | None = None, *, tensorboard: bool = False
    ) -> None:
        kept = kept or Metrics()
        self.records = list(kept.records)
        self._digest = kept.digest.copy()
        self._folder = folder
        with explained(folder.path):
            # Unbuffered, so that closing the file does not retry a line that did not fit on disk.
            self._metrics: IO[bytes] = open_to_append(folder.path / METRICS)
            #: True if the folder has records of rounds after its checkpoint, which are removed.
            self.went_back = os.fstat(self._metrics.fileno()).st_size > kept.size
            self._metrics.truncate(kept.size)
            self._metrics.seek(kept.size)
            self.events = EventLog(folder.path / EVENTS)
        self._board = None
        if tensorboard:
            target = str(folder.within("tensorboard").path)
            self._board = find_board()(target, purge_step=len(self.records) + 1)

    @property
    def metrics_bytes(self) -> int:
        """Return the number of bytes of metrics written so far, for a checkpoint."""
        return self._metrics.tell()

    @property
    def metrics_digest(self) -> str:
        """Return the SHA-256 digest of the metrics written so far, for a checkpoint."""
        return self._digest.hexdigest()

    def record(self, record: Record) -> None:
        """Append a round's record to the metrics. Call `sync` to wait until it is on disk."""
        line = json.dumps(strict(record), allow_nan=False) + "\n"
        with explained(self._folder.path):
            write_all(self._metrics, line.encode())
        self._digest.update(line.encode())
        self.records.append(record)
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, int | float) and name != "round":
                    self._board.add_scalar(name, value, record["round"])

    def sync(self) -> None:
        """Wait until all records written so far are on disk."""
        with explained(self._folder.path):
            os.fsync(self._metrics.fileno())

    def event(self, text: str) -> None:
        """Append `text` to the event log, with the time. Control characters are replaced."""
        with explained(self._folder.path):
            self.events.append(stamped(text))

    def close(self) -> None:
        self._metrics.close()
        self.events.close()
        if self._board is not None:
            self._board.close()


@dataclass(frozen=True)
class Metrics:
    """The metrics in a run's folder: their size in bytes, their digest, and the records in them."""

    size: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    records: Sequence[Record] = ()

    @classmethod
    def vouched(cls, folder: RunFolder, size: int, digest: str) -> Metrics:
        """Read the first `size` bytes of the metrics in `folder`, and check their SHA-256.

        Raises `RunFolderError` if the SHA-256 is not `digest`.
        """
        path = folder.path / METRICS
        if size == 0:
            return cls()
        with intact(path), opened(path, MOST_LINES_BYTES) as file:
            data = file.read(integer("metrics_bytes", size, 0))
            found = vouched_hash(data, size, digest)
            records = [_record(read_line(line)) for line in data.decode().splitlines()]
            return cls(size, found, records)


#: The end of an error about a line that no interruption can have cut off.
DAMAGED = "The file was edited or damaged: restore it"


def read_whole_lines(
    text: str, path: Path, resume: str | None, needed: Collection[str] = ()
) -> list[Record]:
    """Parse the text of the metrics file `path`. An incomplete last line is ignored.

    Raises RunFolderError for a line that is no record, or that lacks a key in `needed`. If it is
    the last line, the error names `resume`, the command that resumes the run. `resume` is None for
    a run that has ended: no line of its file was cut off.
    """
    records, lines = list[Record](), text[: text.rfind("\n") + 1].splitlines()
    for number, line in enumerate(lines, 1):
        last = resume if number == len(lines) else None
        try:
            record = _record(read_line(line))
        except MALFORMED as error:
            broken = isinstance(error, json.JSONDecodeError)
            why = ("it breaks off" if last else "it is no JSON") if broken else str(error)
            raise RunFolderError(_incomplete(path, number, why, last)) from None
        if missing := [key for key in needed if key not in record]:
            raise RunFolderError(_incomplete(path, number, f"no {missing[0]}", last))
        records.append(record)
    return records


def _incomplete(path: Path, line: int, why: str, resume: str | None) -> str:
    """Return the error for an invalid record. Only the last one can have been cut off."""
    where = f"{path}, line {line}"
    if resume is None:
        return f"{where}: invalid record ({why}). {DAMAGED}"
    return (
        f"{where}: incomplete record ({why}). The run was probably cut off; resume it with: "
        f"{resume}"
    )


def read_line(line: str) -> Any:
    """Return the value in a line of JSON.

    Raises ValueError if the line is not valid JSON, or a text in it is not valid Unicode.
    """
    found = json.loads(line)
    if "\\u" in line:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _record(line: Any) -> Record:
    if not isinstance(line, dict):
        raise MessageInvalid("it holds a line that is no record")
    return {key: revived(value) for key, value in line.items()}


def strict(value: Any) -> Any:
    """Return `value` for strict JSON: infinite and NaN numbers become "inf", "-inf" or "nan"."""
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def revived(value: Any) -> Any:
    """Turn the strings "inf", "-inf" and "nan" in `value` back into floats, at any depth."""
    if isinstance(value, Mapping):
        return {key: revived(item) for key, item in value.items()}
    if isinstance(value, list):
        return [revived(item) for item in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def find_board() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "trackers", "record.tensorboard") from None
    return SummaryWriter

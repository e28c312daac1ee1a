"""What a run writes down: a line of metrics a round, and its events."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from fedveil.errors import MissingExtra, RunFolderError
from fedveil.record.run_folder import EVENTS, METRICS, RunFolder, explained

Record = dict[str, Any]


class Recorder:
    """Appends to a run folder's metrics and events, and to TensorBoard where it is wanted.

    A record is on the disk when `record` returns, or, without `durable`, when `sync` does.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        keep_bytes: int = 0,
        tensorboard: bool = False,
        durable: bool = True,
    ) -> None:
        self.records: list[Record] = []
        self._folder = folder
        self._durable = durable
        with explained(folder.path):
            # Unbuffered: a line that found no room is not tried again when the file is closed.
            self._metrics: IO[bytes] = (folder.path / METRICS).open("ab", buffering=0)
            if self._metrics.tell() < keep_bytes:
                raise RunFolderError(f"{folder.path / METRICS} is shorter than its checkpoint says")
            self._metrics.truncate(keep_bytes)
            self._metrics.seek(keep_bytes)
            self._events: IO[bytes] = (folder.path / EVENTS).open("ab", buffering=0)
        if keep_bytes:
            self.records = read_metrics(folder.path)
        self._board = None
        if tensorboard:
            target = str(folder.path / "tensorboard")
            self._board = find_board()(target, purge_step=len(self.records) + 1)

    @property
    def metrics_bytes(self) -> int:
        """How much of the metrics is written; a checkpoint vouches for that much."""
        return self._metrics.tell()

    def record(self, record: Record) -> None:
        """Append a round's line, strict JSON."""
        line = json.dumps(_strict(record), allow_nan=False)
        with explained(self._folder.path):
            _append(self._metrics, line + "\n")
        if self._durable:
            self.sync()
        self.records.append(record)
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, int | float) and name != "round":
                    self._board.add_scalar(name, value, record["round"])

    def sync(self) -> None:
        """Wait until all records are on the disk."""
        with explained(self._folder.path):
            os.fsync(self._metrics.fileno())

    def event(self, text: str) -> None:
        """Append a line of text with the time."""
        stamp = datetime.now().isoformat(timespec="seconds")
        with explained(self._folder.path):
            _append(self._events, f"{stamp} {text}\n")

    def close(self) -> None:
        """Finish the files."""
        self._metrics.close()
        self._events.close()
        if self._board is not None:
            self._board.close()


def _append(file: IO[bytes], text: str) -> None:
    data = text.encode()
    while data:  # the system may take a part, and say why it takes no more at the next try
        data = data[file.write(data) :]


def read_metrics(path: Path) -> list[Record]:
    """The records of a run's folder, non-finite figures as floats again."""
    lines = (path / METRICS).read_text().splitlines()
    return [{k: _revive(v) for k, v in json.loads(line).items()} for line in lines]


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _revive(value: Any) -> Any:
    return float(value) if value in ("inf", "-inf", "nan") else value


def find_board() -> Any:
    """TensorBoard's writer; says what to install where it is not there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "report", "record.tensorboard") from None
    return SummaryWriter

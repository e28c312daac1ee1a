"""Writes a party's records and event log to its run folder, and shows them to its user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedveil.record.recorder import Metrics, Record, Recorder
from fedveil.record.run_folder import RunFolder

Progress = Callable[[Record], None]


class PartyLog:
    """Writes a party's records and log sentences to its folder, and shows them to its user.

    `progress` is called with each record, and `say` with each sentence for the user. Call `open`
    before anything is written.
    """

    def __init__(
        self,
        party: str,
        folder: RunFolder,
        progress: Progress | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.records: list[Record] = []
        self._party, self._folder = party, folder
        self._tell = progress or (lambda record: None)
        self._say = say or (lambda sentence: None)
        self._recorder: Recorder | None = None

    def open(self, metrics: Metrics) -> None:
        """Open the folder's files for appending, and keep only the records in `metrics`.

        Records that the folder has after these, such as those of steps that will be repeated, are
        removed.
        """
        self.close()
        self._recorder = Recorder(self._folder, metrics)
        self.records = self._recorder.records

    def show_records(self) -> None:
        for record in self.records:
            self._tell(record)

    def record(self, **figures: Any) -> None:
        record = {"party": self._party, **figures}
        self._opened.record(record)
        self._tell(record)

    def event(self, text: str) -> None:
        self._opened.event(text)

    @property
    def head(self) -> str:
        """The last digest in the event log's hash chain. It depends on all lines of the log."""
        return self._opened.log_head

    def say(self, sentence: str) -> None:
        """Write a sentence to the log, and show it to the user who started this party."""
        self.event(sentence)
        self._say(sentence)

    def synced(self) -> tuple[int, str]:
        """Write all records to disk. Returns the metrics file's size in bytes and its digest."""
        if self._recorder is None:
            return 0, ""
        self._recorder.sync()
        return self._recorder.metrics_bytes, self._recorder.metrics_digest

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()

    @property
    def _opened(self) -> Recorder:
        assert self._recorder is not None, "restore comes first"
        return self._recorder

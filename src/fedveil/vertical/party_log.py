"""Writes a party's records and logs to its run folder, and shows them to its user.

Another party may be given `events.log`, because only a comparison shows that it was edited. So a
sentence that depends on private data, or on settings that the party keeps to itself, is written to
`private.log`, and never to `events.log`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedveil.base.files import append_whole, open_to_append
from fedveil.record.event_log import EventLog, stamped
from fedveil.record.recorder import Metrics, Record, Recorder
from fedveil.record.run_folder import EVENTS, PRIVATE, RunFolder, explained

Progress = Callable[[Record], None]


class PartyLog:
    """Writes a party's records and log sentences to its folder, and shows them to its user.

    `progress` is called with each record, and `say` with each sentence for the user. Call `open` or
    `open_events` before anything is written.
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
        self._events: EventLog | None = None

    def open(self, metrics: Metrics) -> None:
        """Open the folder's files for appending, and keep only the records in `metrics`.

        Records that the folder has after these, such as those of steps that will be repeated, are
        removed.
        """
        self.close()
        self._recorder = Recorder(self._folder, metrics)
        self._events, self.records = self._recorder.events, self._recorder.records

    def open_events(self, metrics: Metrics) -> None:
        """Open only the event log for appending. No record is removed, and none can be written.

        `records` are then those in `metrics`.
        """
        self.close()
        with explained(self._folder.path):
            self._events = EventLog(self._folder.path / EVENTS)
        self._recorder, self.records = None, list(metrics.records)

    def show_records(self) -> None:
        for record in self.records:
            self._tell(record)

    def record(self, **figures: Any) -> None:
        record = {"party": self._party, **figures}
        assert self._recorder is not None, "open comes first"
        self._recorder.record(record)
        self._tell(record)

    def event(self, text: str) -> None:
        with explained(self._folder.path):
            self._opened.append(stamped(text))

    @property
    def head(self) -> str:
        """The last digest in the event log's hash chain. It depends on all lines of the log."""
        return self._opened.head

    def say(self, sentence: str) -> None:
        """Write a sentence to the log, and show it to the user who started this party."""
        self.event(sentence)
        self.show(sentence)

    def show(self, sentence: str) -> None:
        """Show a sentence to the user alone. Other parties may be given the log."""
        self._say(sentence)

    def note(self, sentence: str) -> None:
        """Write a sentence to the private file, which no other party may be given."""
        path = self._folder.path / PRIVATE
        with explained(path), open_to_append(path) as file:
            append_whole(file, f"{stamped(sentence)}\n".encode())

    def confide(self, sentence: str) -> None:
        """Write a sentence to the private file, and show it to the user who started this party."""
        self.note(sentence)
        self.show(sentence)

    def synced(self) -> tuple[int, str]:
        """Write all records to disk. Returns the metrics file's size in bytes and its digest."""
        if self._recorder is None:
            return 0, ""
        self._recorder.sync()
        return self._recorder.metrics_bytes, self._recorder.metrics_digest

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        elif self._events is not None:
            self._events.close()

    @property
    def _opened(self) -> EventLog:
        assert self._events is not None, "open comes first"
        return self._events

"""Sums over the steps since the previous record, for the next training record."""

from __future__ import annotations

import time
from typing import Any

from fedveil.base.message import Message
from fedveil.record.recorder import Record
from fedveil.vertical.party import Party


class StepWindow:
    """Sums over the steps since the previous record: loss, bytes, seconds, examples.

    `kept` has the sums from a checkpoint. If it is None, all sums start at 0.
    """

    def __init__(self, party: Party, kept: Message | None = None) -> None:
        self._party = party
        counts = dict.fromkeys(("losses", "steps", "sent", "received"), 0)
        self.kept: dict[str, Any] = dict(kept or {"loss": 0.0, **counts})
        self._rows, self._seconds, self._waited = 0, 0.0, 0.0
        self.look_away()

    def add(self, loss: float | None, rows: int) -> None:
        if loss is not None:
            self.kept["loss"] += loss
            self.kept["losses"] += 1
        began, sent, received, waited = self._at
        self.look_away()
        self.kept["steps"] += 1
        self.kept["sent"] += self._at[1] - sent
        self.kept["received"] += self._at[2] - received
        self._rows += rows
        self._seconds += self._at[0] - began
        self._waited += self._at[3] - waited

    def look_away(self) -> None:
        """Leave the time and bytes since the last step out of the sums. Call after evaluation."""
        party = self._party
        self._at = (time.perf_counter(), party.sent_bytes, party.received_bytes, party.waited_s)

    def figures(self, unit: str, units_per_example: int) -> Record:
        kept = self.kept
        return {
            **({"loss": kept["loss"] / kept["losses"]} if kept["losses"] else {}),
            "bytes_sent_per_step": kept["sent"] / kept["steps"],
            "bytes_received_per_step": kept["received"] / kept["steps"],
            "unit": unit,
            "seconds_per_unit": self._seconds / max(self._rows * units_per_example, 1),
            "seconds_waiting": self._waited,
        }

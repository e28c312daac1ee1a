"""Remembers, for each client, the last round whose sum contains the client's report."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fedveil.base.array_types import Int64s
from fedveil.base.message import Message, only_fields, take_array
from fedveil.errors import MessageInvalid
from fedveil.federated.job import Job
from fedveil.rounds.outcomes import ClientId


class SummedReports:
    """Maps each client to the last round whose sum contains its report, or 0 if there is none."""

    def __init__(self, job: Job) -> None:
        self.last: Int64s = np.zeros((job.clients.number or 0) if job.keeps_state else 0, np.int64)

    def note(self, round: int, clients: Collection[ClientId]) -> None:
        """Record the clients whose reports are in the sum of `round`."""
        if len(self.last):
            self.last[np.fromiter(clients, np.int64, len(clients))] = round

    def state(self) -> Message:
        return {"last": self.last} if len(self.last) else {}

    def restore(self, state: Message, done: int) -> None:
        """Load each client's last summed round from `state`. Raises if a round is after `done`."""
        only_fields(state, *self.state())
        if not len(self.last):
            return
        last = take_array(state, "last", np.int64, self.last.shape).copy()
        if last.min() < 0 or last.max() > done:
            raise MessageInvalid("field last holds a round that has not ended")
        self.last = last

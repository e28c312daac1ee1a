"""The state of a run between two rounds: everything that a checkpoint saves and restores."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fedveil.base.array_types import Int64s
from fedveil.base.message import Message, only_fields, take_array
from fedveil.base.validate import finite_vector, integer
from fedveil.engine.assembly import start_vector
from fedveil.engine.job_model import text_form
from fedveil.engine.round_checkpoint import LATEST, Checkpoint
from fedveil.engine.run_parts import Parts
from fedveil.engine.run_records import check
from fedveil.errors import InvalidValue, MessageInvalid, RunFolderError
from fedveil.federated.job import Job
from fedveil.privacy.ledger import Ledger
from fedveil.protections.base import Aggregate
from fedveil.record.recorder import Metrics, Recorder
from fedveil.record.run_folder import METRICS, RunFolder
from fedveil.record.sealed_message import intact
from fedveil.rounds.outcomes import ClientId


class RunState:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.done = 0
        self.weights = start_vector(parts.job, parts.test.layout)
        #: The first weights of a language model, which the run's end compares with the last.
        self.first = None if text_form(parts.job) is None else self.weights.copy()
        self.protection = parts.protection.initial_state()
        self.ledger = Ledger(adaptive=parts.protection.adaptive)
        self.summed = SummedReports(parts.job)

    def apply(self, aggregate: Aggregate) -> int:
        """Update the weights with a round's aggregate. Returns the number of reports in it."""
        if self._parts.canaries.clients:
            self._parts.canaries.saw(aggregate)
        summed = aggregate.reports if aggregate.divisor is None else aggregate.divisor
        share = summed / (self._parts.job.clients.number or 1)
        step = self._parts.optimizer.step
        self.weights = step(self.weights, aggregate.update, share, in_place=True)
        self.protection = aggregate.state
        return aggregate.reports

    def restore(self, folder: RunFolder) -> Metrics:
        """Load the folder's checkpoint, if any. Returns the metrics up to that checkpoint."""
        parts, path = self._parts, folder.path
        saved = Checkpoint.read(folder, parts.job.checkpoint.every)
        if saved is None:
            return Metrics()
        if saved.fingerprint != parts.fingerprint:
            raise RunFolderError(
                f"{path} belongs to another job, another model or other data than those given now"
            )
        with intact(path / LATEST):
            self.done = integer("round", saved.round, 1, parts.job.rounds)
            shape = self.weights.shape
            self.weights = take_array(vars(saved), "weights", np.float32, shape).copy()
            finite_vector("weights", self.weights)
            parts.optimizer.restore(saved.optimizer)
            parts.protection.check_state(saved.protection)
            self.protection = saved.protection
            self.ledger = Ledger.from_state(saved.ledger)
            parts.canaries.restore(saved.canaries)
            self.summed.restore(saved.summed, self.done)
            if self.ledger.adaptive != parts.protection.adaptive:
                raise InvalidValue("field adaptive does not match the protection")
        metrics = Metrics.vouched(folder, saved.metrics_bytes, saved.metrics_digest)
        with intact(path / METRICS):
            check(metrics.records, saved.round)
        with intact(path / LATEST):
            parts.stopping.restore(saved.best, metrics.records, len(self.weights))
        return metrics

    def checkpoint(self, recorder: Recorder) -> Checkpoint:
        """Return the run's state as a checkpoint. Save it before the next call of `apply`.

        The checkpoint contains this object's array of weights, which `apply` may overwrite.
        `recorder` states the length and the digest of the metrics file.
        """
        return Checkpoint(
            round=self.done,
            metrics_bytes=recorder.metrics_bytes,
            metrics_digest=recorder.metrics_digest,
            fingerprint=self._parts.fingerprint,
            weights=self.weights,
            optimizer=self._parts.optimizer.state(),
            protection=self.protection,
            ledger=self.ledger.to_state(),
            canaries=self._parts.canaries.state(),
            best=self._parts.stopping.state(),
            summed=self.summed.state(),
        )


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
        """Load each client's last summed round from `state`.

        `done` is the last complete round. Raises `MessageInvalid` if `state` has a later round.
        """
        only_fields(state, *self.state())
        if not len(self.last):
            return
        last = take_array(state, "last", np.int64, self.last.shape).copy()
        if last.min() < 0 or last.max() > done:
            raise MessageInvalid("field last holds a round that has not ended")
        self.last = last

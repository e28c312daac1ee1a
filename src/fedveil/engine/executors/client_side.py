"""What happens on a client's side of a round: train, protect, encode.

One object serves many clients, one after another; the simulator runs it in the calling process
or in its worker processes. A client's randomness is named by its number and the round, so that
it does not matter who serves it or when.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld, ReportRejected
from fedveil.learning.trainer import ClientData, Trainer
from fedveil.message import Message, encode, encoded_bytes
from fedveil.protections.base import (
    ClientContext,
    ClientId,
    ClientRound,
    Protection,
    RoundContext,
    ServerRound,
)


@dataclass
class Answer:
    """What came of asking one client: an encoded report, or the reason why there is none.

    On its way out of a worker a report in shared memory is the pair of its begin and end there.
    A report that was folded where it was made left `report_bytes` and, if refused, the reason.
    Clients that train together leave the time and the warnings of it with the first of them.
    """

    client: ClientId
    report: bytes | memoryview | tuple[int, int] | None = None
    report_bytes: int = 0
    rejected: str | None = None
    failed: str | None = None
    withheld: str | None = None
    training_s: float = 0.0
    protection_s: float = 0.0
    aggregation_s: float = 0.0
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ClientsData:
    """All clients' examples; client c owns those that `indices[offsets[c]:offsets[c + 1]]` name."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    def examples(self, client: ClientId) -> int:
        """How many examples the client has."""
        return int(self.offsets[client + 1] - self.offsets[client])

    def of(self, client: ClientId, entropy: Entropy) -> ClientData:
        """The client's own examples."""
        mine = self.indices[self.offsets[client] : self.offsets[client + 1]]
        return ClientData(torch.from_numpy(self.x[mine]), torch.from_numpy(self.y[mine]), entropy)


class ClientSide:
    """Serves the clients of one round after another."""

    def __init__(
        self,
        protection: Protection,
        trainer: Trainer,
        data: ClientsData,
        model: npt.NDArray[np.float32],
        training_entropy: Entropy,
        report_entropy: Entropy,
    ) -> None:
        self._protection = protection
        self._trainer = trainer
        self._data = data
        self._model = model
        self._training_entropy = training_entropy
        self._report_entropy = report_entropy
        self._rounds: dict[ClientId, ClientRound] = {}
        self._round = 0

    @property
    def chunk(self) -> int:
        """How many clients are trained at once, and `answer` is best asked for."""
        return self._trainer.chunk

    @property
    def least(self) -> int:
        """How many clients `answer` must be asked for at once, where there are so many."""
        return self._trainer.least

    def open(self, round: int) -> None:
        """Begin a round: the model's weights are the new ones, the last round's halves are gone."""
        self._round = round
        self._rounds.clear()
        self._trainer.start(self._model)

    def server_round(self, context: RoundContext) -> ServerRound:
        """A server half to fold reports in here; `context` need not hold the model."""
        return self._protection.server_round(replace(context, model=self._model))

    def answer(
        self, asked: Sequence[tuple[ClientId, Message]], server: ServerRound | None = None
    ) -> list[Answer]:
        """Each client's answer to its message; with `server`, reports are folded in that half."""
        answers = [Answer(client) for client, _ in asked]
        learners = [
            i for i, (c, message) in enumerate(asked) if self._half(c).wants_update(message)
        ]
        updates = self._train([answers[i] for i in learners])
        for i, update in zip(learners, updates, strict=True):
            self._respond(answers[i], asked[i][1], update, server)
        for i in sorted({*range(len(asked))} - {*learners}):
            self._respond(answers[i], asked[i][1], None, server)
        return answers

    def _half(self, client: ClientId) -> ClientRound:
        if client not in self._rounds:
            self._rounds[client] = self._protection.client_round(
                ClientContext(
                    client=client,
                    round=self._round,
                    model=self._model,
                    examples=self._data.examples(client),
                    entropy=self._report_entropy.stream("report", self._round, client),
                )
            )
        return self._rounds[client]

    def _train(self, answers: Sequence[Answer]) -> Iterator[npt.NDArray[np.float32]]:
        """The clients' updates in their order; each is valid until the next is asked for."""
        for start in range(0, len(answers), self.chunk):
            yield from self._train_chunk(deque(answers[start : start + self.chunk]))

    def _train_chunk(self, waiting: deque[Answer]) -> Iterator[npt.NDArray[np.float32]]:
        began = time.perf_counter()
        clients = [
            self._data.of(a.client, self._training_entropy.stream("train", self._round, a.client))
            for a in waiting
        ]
        trained = self._trainer.train(clients)
        while waiting:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                rows, failures = next(trained)
            waiting[0].warnings += _texts(caught)
            for row, failure in zip(rows, failures, strict=True):
                answer = waiting.popleft()
                if failure is not None:
                    answer.failed = f"{type(failure).__name__}: {failure}"
                elif not _all_finite(row):
                    answer.withheld = "the update is not finite"
                answer.training_s = time.perf_counter() - began
                yield row
                began = time.perf_counter()

    def _respond(
        self,
        answer: Answer,
        message: Message,
        update: npt.NDArray[np.float32] | None,
        server: ServerRound | None,
    ) -> None:
        if answer.failed is not None or answer.withheld is not None:
            return
        began = time.perf_counter()
        report: Message | None = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                report = self._half(answer.client).respond(message, update)
                if server is None:
                    answer.report = encode(report)
            except ClientWithheld as reason:
                answer.withheld = str(reason)
        answer.protection_s = time.perf_counter() - began
        answer.warnings += _texts(caught)
        if report is not None and server is not None:
            _fold(answer, report, server)


def _fold(answer: Answer, report: Message, server: ServerRound) -> None:
    began = time.perf_counter()
    answer.report_bytes = encoded_bytes(report)
    try:
        server.receive(answer.client, report)
    except ReportRejected as rejected:
        answer.rejected = rejected.reason
    answer.aggregation_s = time.perf_counter() - began


def _all_finite(row: npt.NDArray[np.float32]) -> bool:
    # The square of the norm is finite where all entries are, unless they are huge: one pass.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(row, row)) or np.isfinite(row).all())


def _texts(caught: Sequence[Any]) -> list[str]:
    return [f"{w.category.__name__}: {w.message}" for w in caught]

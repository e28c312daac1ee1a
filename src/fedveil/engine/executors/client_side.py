"""Trains clients and makes their reports. This is the client's side of a simulated round.

A client's randomness depends only on the round and the client's number. So its result depends
neither on the process that trains it nor on the order of clients.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Bools
from fedveil.base.message import Message
from fedveil.engine.executors.client_warnings import WarningsNoted
from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld
from fedveil.learning.trained_part import as_floats
from fedveil.learning.trainer import ClientData, Trainer
from fedveil.protections.always_answers import answer_trained, reason
from fedveil.protections.base import ClientContext, ClientRound, Protection, State, Update
from fedveil.protections.origin import Origin, model_alone, origin_of
from fedveil.protections.own_errors import own_errors
from fedveil.rounds.outcomes import Answer, ClientId, Effort, Failed, Withheld


@dataclass
class Trained(Answer):
    """A client's update. The array is valid until the next answer is requested."""

    update: Update


@dataclass
class Made(Answer):
    """A client's reply before it is encoded. It is valid until the next answer is requested."""

    message: Message


@dataclass(frozen=True)
class ClientsData:
    """All clients' examples. Client c owns the rows indices[offsets[c]:offsets[c + 1]] of x and y.

    `usable` is a mask of the examples that may be used. None means all of them.
    """

    x: Array
    y: Array
    indices: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    usable: Bools | None = None

    @classmethod
    def of_one(
        cls, client: ClientId, x: Array, y: Array, usable: Bools | None = None
    ) -> ClientsData:
        """Return data in which `client` has the examples x and y, and other clients have none.

        `usable` is a mask of the examples that may be used. None means all of them.
        """
        offsets = np.zeros(client + 2, np.int64)
        offsets[-1] = len(y)
        return cls(x, y, np.arange(len(y)), offsets, usable)

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that are not None, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    def only(self, client: ClientId) -> ClientsData:
        mine = self.indices[self.offsets[client] : self.offsets[client + 1]]
        usable = None if self.usable is None else self.usable[mine]
        return self.of_one(client, self.x[mine], self.y[mine], usable)

    def examples(self, client: ClientId) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    def of(self, client: ClientId, entropy: Entropy, *, unchanged: bool = False) -> ClientData:
        """Return a client's examples, with `entropy` for the random numbers of its training.

        `unchanged` promises that the caller does not change the arrays, which may then be views.
        """
        mine: npt.NDArray[np.int64] | slice
        mine = self.indices[self.offsets[client] : self.offsets[client + 1]]
        writeable = self.x.flags.writeable and self.y.flags.writeable  # else torch warns
        if unchanged and writeable and len(mine) and _is_run(mine):
            mine = slice(mine[0], mine[-1] + 1)
        usable = None if self.usable is None else self.usable[mine]
        return ClientData.of(as_floats(self.x[mine]), self.y[mine], entropy, usable)


def _is_run(indices: npt.NDArray[np.int64]) -> bool:
    if indices[-1] - indices[0] != len(indices) - 1:  # decides for most clients
        return False
    return len(indices) < 3 or bool((np.diff(indices) == 1).all())


class Examples(Protocol):
    """The examples of the clients that this process trains: `ClientsData` or `Shards`."""

    @property
    def x(self) -> Array: ...

    def examples(self, client: ClientId) -> int: ...

    def of(self, client: ClientId, entropy: Entropy, *, unchanged: bool = False) -> ClientData: ...


class Training(ABC):
    """Trains a round's clients and yields their updates.

    `chunk` is the preferred number of clients in one call of `updates`, and `least` the smallest,
    except for the last call of a round. `failure` is the exception of the last training that
    failed, or None.
    """

    chunk: int
    least: int
    #: True if clients keep state, so that `reported` must be called after each report.
    keeps = False
    failure: Exception | None = None

    @abstractmethod
    def open(self, round: int, model: Update) -> None:
        """Start a round with the global weights `model`."""

    @abstractmethod
    def examples(self, client: ClientId) -> int:
        """Return the client's number of examples."""

    @abstractmethod
    def updates(self, clients: Sequence[ClientId]) -> Iterator[Answer]:
        """Yield `Trained` for each client in order, or `Failed` if its training raised an error."""

    def reported(self, client: ClientId, carried: Update) -> None:  # noqa: B027 - most keep nothing
        """Update the client's state after its report. The default does nothing.

        `carried` is the update in the report, after clipping but without noise.
        """


class LocalTraining(Training):
    """Trains each client on its own examples.

    If `scale` is given, it maps a client's number of examples to a factor by which the client's
    update is multiplied.
    """

    def __init__(
        self,
        trainer: Trainer,
        data: Examples,
        entropy: Entropy,
        scale: Callable[[int], float] | None = None,
    ) -> None:
        self.trainer = trainer
        self.data = data
        self._scale = scale
        self.chunk, self.least = trainer.chunk, trainer.least
        self._entropy = entropy
        self._round = 0

    def open(self, round: int, model: Update) -> None:
        self._round = round
        self.trainer.start(model, round)

    def examples(self, client: ClientId) -> int:
        return self.data.examples(client)

    def updates(self, clients: Sequence[ClientId]) -> Iterator[Answer]:
        for start in range(0, len(clients), self.trainer.chunk):
            yield from self._together(deque(clients[start : start + self.trainer.chunk]))

    def _of(self, client: ClientId) -> ClientData:
        entropy = self._entropy.stream("train", self._round, client)
        return self.data.of(client, entropy, unchanged=self.trainer.native)

    def _together(self, waiting: deque[ClientId]) -> Iterator[Answer]:
        began = time.perf_counter()
        trained = self.trainer.train([self._of(client) for client in waiting])
        while waiting:
            effort = Effort()
            with WarningsNoted(effort):
                rows, failures = next(trained)
            for row, failure in zip(rows, failures, strict=True):
                effort.training_s = time.perf_counter() - began
                client = waiting.popleft()
                if failure is None:
                    if self._scale is not None:
                        row = row * np.float32(self._scale(self.data.examples(client)))
                    yield Trained(client, row, effort=effort)
                else:
                    self.failure = failure
                    yield Failed(client, f"{type(failure).__name__}: {failure}", effort=effort)
                began, effort = time.perf_counter(), Effort()


class ClientSide:
    """Acts as the clients of each round: trains them and makes their answers to the server."""

    def __init__(
        self, protection: Protection, training: Training, model: Update, entropy: Entropy
    ) -> None:
        self.protection = protection
        self.model = model
        self._training = training
        self._entropy = entropy
        self._halves: dict[ClientId, ClientRound] = {}
        self._round = 0
        self._origin: Origin = model_alone
        #: One view for all clients of a round, so that a digest of it is computed once.
        self._start = self.weights

    @property
    def chunk(self) -> int:
        """The preferred number of clients in one call of `answers`."""
        return self._training.chunk

    @property
    def keeps_state(self) -> bool:
        return self._training.keeps

    def examples(self, client: ClientId) -> int:
        return self._training.examples(client)

    @property
    def least(self) -> int:
        """The smallest number of clients in one call of `answers`, except for the last call."""
        return self._training.least

    @property
    def weights(self) -> Update:
        """The part of `self.model` that an update changes: its first entries.

        They are the global weights and, under SCAFFOLD, the mean control variate. Under FedCM,
        `self.model` has further entries at its end: the last aggregate, which an update does not
        change.
        """
        return self.model[: self.protection.dimension]

    def open(self, round: int, told: Message | None = None) -> None:
        """Start a round with the weights in `self.model`. `told` is as in `RoundContext`."""
        self._round, self._start = round, self.weights
        self._origin = cache(partial(origin_of, self.model, len(self._start), told or {}))
        self._halves.clear()
        self._training.open(round, self.model)

    def answers(self, asked: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """Yield an answer of each client in `asked`: `Made` (a reply), `Withheld` or `Failed`."""
        for client, trained in self.trained(asked):
            yield self.answer(client, asked[client], trained)

    def trained(
        self, asked: Mapping[ClientId, Message]
    ) -> Iterator[tuple[ClientId, Answer | None]]:
        """Yield pairs of a client in `asked` and the result of its training.

        The result is `Trained` or `Failed`, or None if the client's message requests no training.
        The update in a result is valid until the next client is requested.
        """
        learners = [c for c, message in asked.items() if self._half(c).wants_update(message)]
        for trained in self._training.updates(learners):
            yield trained.client, trained
        learning = set(learners)
        yield from ((client, None) for client in asked if client not in learning)

    def answer(self, client: ClientId, message: Message, trained: Answer | None) -> Answer:
        """Return a client's answer to `message`.

        `trained` is the result of the client's training, or None if `message` requests none.
        """
        if trained is None:
            return self._reply(message, client)
        if isinstance(trained, Trained) or self.protection.always_reports:
            return self._report(message, trained)
        return trained

    def _report(self, message: Message, trained: Answer) -> Answer:
        """Return a client's answer to `message`, which requests an update.

        `trained` is the result of the client's training. If it is unusable, and the protection
        always reports, the client reports an update of zero.
        """
        client, effort = trained.client, trained.effort
        half = self._half(client)
        talks = self.protection.always_reports and len(self.protection.flow) > 1
        before = half.keep() if talks else {}
        try:
            with _measured(effort):
                reply = answer_trained(
                    self.protection,
                    lambda examples: half,
                    lambda: self._half_from(before, client),
                    message,
                    lambda: (_update(trained), self._training.examples(client)),
                )
        except ClientWithheld as why:
            return Withheld(client, str(why), effort=effort)
        self._halves[client] = reply.half
        if reply.unusable is not None:
            effort.unusable = reason(reply.unusable)
            effort.raised = isinstance(trained, Failed)
        elif isinstance(trained, Trained) and self._training.keeps:
            self._training.reported(client, self.protection.carried(trained.update, message))
        return Made(client, reply.message, effort=effort)

    def _reply(self, message: Message, client: ClientId) -> Answer:
        effort = Effort()
        try:
            with _measured(effort), own_errors(self.protection):
                answer = self._half(client).respond(message, None)
        except ClientWithheld as why:
            return Withheld(client, str(why), effort=effort)
        return Made(client, answer, effort=effort)

    def _half(self, client: ClientId) -> ClientRound:
        if client not in self._halves:
            self._halves[client] = self._new_half(client)
        return self._halves[client]

    def _new_half(self, client: ClientId) -> ClientRound:
        return self.protection.client_round(
            ClientContext(
                client=client,
                round=self._round,
                model=self._start,
                examples=self._training.examples(client),
                entropy=self._entropy.stream("report", self._round, client),
                origin=self._origin,
            )
        )

    def _half_from(self, state: State, client: ClientId) -> ClientRound:
        """Return a `ClientRound` (the client's half of the protection) restored from `state`.

        `state` is what `keep` returned for an earlier `ClientRound` of the client. If it is empty,
        the result has received no message yet.
        """
        half = self._new_half(client)
        if state:
            half.take_up(state)
        return half


def _update(trained: Answer) -> Update:
    if isinstance(trained, Trained):
        return trained.update
    raise ClientWithheld(trained.reason if isinstance(trained, Failed) else "")


@contextmanager
def _measured(effort: Effort) -> Iterator[None]:
    began = time.perf_counter()
    try:
        with WarningsNoted(effort):
            yield
    finally:
        effort.protection_s += time.perf_counter() - began

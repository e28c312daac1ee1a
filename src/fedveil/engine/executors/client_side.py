"""What happens on a client's side of a round: train, protect.

One object serves many clients, one after another, in the calling process or in a worker. A
client's randomness is named by its number and the round, so that it does not matter who serves it
or when.
"""

from __future__ import annotations

import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.arrays import Array, Bools
from fedveil.base.message import Message
from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld
from fedveil.learning.trained_part import as_floats
from fedveil.learning.trainer import ClientData, Trainer
from fedveil.protections.always_answers import answer_trained, reason
from fedveil.protections.base import ClientContext, ClientRound, Protection, Update
from fedveil.rounds.outcomes import Answer, ClientId, Effort, Failed, Withheld


@dataclass
class Trained(Answer):
    """An update, valid until the next one is asked for."""

    update: Update


@dataclass
class Made(Answer):
    """A report that is not encoded yet, valid until the next answer is asked for."""

    message: Message


@dataclass(frozen=True)
class ClientsData:
    """All clients' examples; client c owns those that `indices[offsets[c]:offsets[c + 1]]` name.

    Examples that are not `usable` count for nothing; None: all are usable.
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
        """The examples of one client, the others having none."""
        offsets = np.zeros(client + 2, np.int64)
        offsets[-1] = len(y)
        return cls(x, y, np.arange(len(y)), offsets, usable)

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name, without absent ones."""
        return {name: array for name, array in vars(self).items() if array is not None}

    def only(self, client: ClientId) -> ClientsData:
        """The same without the examples of all others."""
        mine = self.indices[self.offsets[client] : self.offsets[client + 1]]
        usable = None if self.usable is None else self.usable[mine]
        return self.of_one(client, self.x[mine], self.y[mine], usable)

    def examples(self, client: ClientId) -> int:
        """How many examples the client has."""
        return int(self.offsets[client + 1] - self.offsets[client])

    def of(self, client: ClientId, entropy: Entropy, *, unchanged: bool = False) -> ClientData:
        """The client's own examples; those that stay `unchanged` are read where they lie."""
        mine: npt.NDArray[np.int64] | slice
        mine = self.indices[self.offsets[client] : self.offsets[client + 1]]
        writeable = self.x.flags.writeable and self.y.flags.writeable  # torch warns of others
        if unchanged and writeable and len(mine) and _is_run(mine):
            mine = slice(mine[0], mine[-1] + 1)
        usable = None if self.usable is None else self.usable[mine]
        return ClientData.of(as_floats(self.x[mine]), self.y[mine], entropy, usable)


def _is_run(indices: npt.NDArray[np.int64]) -> bool:
    """Whether these are whole numbers one after another."""
    return bool((np.diff(indices) == 1).all())


class Training(ABC):
    """Where the updates of a round's clients come from."""

    #: How many clients train at once, and must where there are so many.
    chunk: int
    least: int
    #: What the last training that failed has raised.
    failure: Exception | None = None

    @abstractmethod
    def open(self, round: int, model: Update) -> None:
        """Begin a round with these global weights."""

    @abstractmethod
    def examples(self, client: ClientId) -> int:
        """How many examples the client has."""

    @abstractmethod
    def updates(self, clients: Sequence[ClientId]) -> Iterator[Answer]:
        """`Trained` for each of the clients, in their order, or `Failed` where training raised."""


class LocalTraining(Training):
    """Trains the clients of one round after another, each on its own examples.

    `scale`: what the update of a client with so many examples is multiplied by.
    """

    def __init__(
        self,
        trainer: Trainer,
        data: ClientsData,
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
            with noting_warnings(effort):
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
    """Serves the clients of one round after another."""

    def __init__(
        self, protection: Protection, training: Training, model: Update, entropy: Entropy
    ) -> None:
        self.protection = protection
        self.model = model
        self._training = training
        self._entropy = entropy
        self._halves: dict[ClientId, ClientRound] = {}
        self._round = 0

    @property
    def chunk(self) -> int:
        """How many clients are trained at once, and `answers` are best asked for."""
        return self._training.chunk

    def examples(self, client: ClientId) -> int:
        """How many examples the client has."""
        return self._training.examples(client)

    @property
    def least(self) -> int:
        """How many clients `answers` must be asked for at once, where there are so many."""
        return self._training.least

    def open(self, round: int) -> None:
        """Begin a round: the model's weights are the new ones, the last round's halves are gone."""
        self._round = round
        self._halves.clear()
        self._training.open(round, self.model)

    def answers(self, asked: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """Each client's answer to its message, `Made` where it is a report."""
        learners = [c for c, message in asked.items() if self._half(c).wants_update(message)]
        for trained in self._training.updates(learners):
            if isinstance(trained, Trained) or self.protection.always_reports:
                yield self._report(asked[trained.client], trained)
            else:
                yield trained
        learning = set(learners)
        for client, message in asked.items():
            if client not in learning:
                half = self._half(client)
                yield _made(client, Effort(), partial(half.respond, message, None))

    def _report(self, message: Message, trained: Answer) -> Answer:
        client, effort = trained.client, trained.effort
        halves = self._as_it_is(client)

        def train() -> tuple[Update, int]:
            if isinstance(trained, Trained):
                return trained.update, self._training.examples(client)
            raise ClientWithheld(trained.reason if isinstance(trained, Failed) else "")

        def respond() -> Message:
            answered = answer_trained(self.protection, lambda _: next(halves), message, train)
            self._halves[client] = answered.half
            if answered.unusable is not None:
                effort.unusable = reason(answered.unusable)
                effort.raised = isinstance(trained, Failed)
            return answered.message

        return _made(client, effort, respond)

    def _half(self, client: ClientId) -> ClientRound:
        if client not in self._halves:
            self._halves[client] = self._new_half(client)
        return self._halves[client]

    def _new_half(self, client: ClientId) -> ClientRound:
        return self.protection.client_round(
            ClientContext(
                client=client,
                round=self._round,
                model=self.model,
                examples=self._training.examples(client),
                entropy=self._entropy.stream("report", self._round, client),
            )
        )

    def _as_it_is(self, client: ClientId) -> Iterator[ClientRound]:
        """The client's half, and once more one that has come as far."""
        half = self._half(client)
        talks = self.protection.always_reports and len(self.protection.flow) > 1
        kept = half.keep() if talks else {}
        yield half
        other = self._new_half(client)
        if kept:
            other.take_up(kept)
        yield other


def _made(client: ClientId, effort: Effort, respond: Callable[[], Message]) -> Answer:
    began = time.perf_counter()
    try:
        with noting_warnings(effort):
            report = respond()
    except ClientWithheld as why:
        return Withheld(client, str(why), effort=effort)
    finally:
        effort.protection_s += time.perf_counter() - began
    return Made(client, report, effort=effort)


class _Ears(threading.local):
    """Where a thread's warnings go."""

    effort: Effort | None = None


_ears = _Ears()
_lock = threading.Lock()
_listeners = 0
_filters = ExitStack()


@contextmanager
def listening() -> Iterator[None]:
    """Tell apart whose warnings are whose: Python's are the process's.

    It costs more than to note some: who serves many clients listens all the while.
    """
    global _listeners
    with _lock:
        if not _listeners:
            _filters.enter_context(warnings.catch_warnings())
            warnings.simplefilter("always")
            warnings.showwarning = partial(_note, warnings.showwarning)
        _listeners += 1
    try:
        yield
    finally:
        with _lock:
            _listeners -= 1
            if not _listeners:
                _filters.close()


@contextmanager
def noting_warnings(effort: Effort) -> Iterator[None]:
    """Leave what is warned of with the effort."""
    with listening():
        _ears.effort = effort
        try:
            yield
        finally:
            _ears.effort = None


def _note(
    elsewhere: Callable[..., None], what: Warning | str, kind: type[Warning], *where: Any
) -> None:
    if _ears.effort is None:
        elsewhere(what, kind, *where)
    else:
        _ears.effort.warnings.append(f"{kind.__name__}: {what}")

"""The loop that drives a round: carries messages between server and clients, counts answers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, TypeVar

from fedveil.base.message import Message, decode, encode
from fedveil.errors import MessageInvalid, ReportRejected, RoundVoid
from fedveil.rounds.outcomes import (
    Answer,
    ClientId,
    Failed,
    Folded,
    Refused,
    Report,
    Unreached,
    Withheld,
    short,
)

T = TypeVar("T")


class ServerHalf(Protocol):
    """The server's side of a round: makes messages for clients and processes their answers."""

    #: The current phase, or None if the half accepts no more answers.
    @property
    def phase(self) -> str | None: ...

    #: True if halves of one round with different clients' reports can be merged.
    @property
    def mergeable(self) -> bool: ...

    #: Maximum bytes of an honest answer in this phase. A longer one is not decoded.
    @property
    def longest(self) -> int: ...

    def receive(self, client: ClientId, message: Message) -> None:
        """Check a client's answer, and add it to the results of the round.

        Raises `ReportRejected`, and changes nothing, if the answer is invalid.
        """

    def advance(self) -> Mapping[ClientId, Message] | None:
        """Close the phase. Returns the next phase's messages, or None after the last phase."""


class MergeableHalf(ServerHalf, Protocol):
    """A server's side of a round that can be split into several objects and merged again.

    Each of these objects adds up the reports of different clients.
    """

    def merge(self, other: Any) -> None:
        """Add the sums of `other`, which has received other clients' reports in this round."""


class Carrier(ABC):
    """Sends messages to clients and yields their answers.

    A client without an answer has dropped out. Its report may nevertheless have been sent.
    """

    #: True if `fold` passes reports to the server itself, so that no sums need to be merged.
    beside_server = False

    @abstractmethod
    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """Send the messages of a round's `phase`, and yield the clients' answers.

        An answer is valid until the next one is requested.
        """

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        """Send the messages of a round's `phase`, and yield the clients' answers, as `ask` does.

        A subclass may also add up reports where they are made, such as in a worker process. For
        each report that is already in a sum, it yields a `Folded`, which has no data. After the
        last answer, it merges its sums into `server`.
        """
        return self.ask(phase, messages)


@dataclass
class Outcome:
    """The result of a round: its traffic, its times, and the fate of every client's answer.

    `void` is the reason why the round has no aggregate, or None if it has one. `bytes_up` counts
    the bytes from clients, and `bytes_down` those to clients. `rejected` (by the server),
    `withheld` (by the client), `failed` (in training) and `unusable` count answers by reason.
    `seconds` maps a kind of work, such as "training", to its total duration in the round.
    """

    void: RoundVoid | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    withheld: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    #: Reports that carry no update, as far as the carrier can see them.
    unusable: Counter[str] = field(default_factory=Counter)
    #: Clients that did not answer a message in some phase.
    dropped: set[ClientId] = field(default_factory=set)
    #: Clients whose report may have been sent, used or not: they have spent privacy.
    charged: set[ClientId] = field(default_factory=set)
    #: Clients whose report arrived, and those whose report was accepted.
    arrived: set[ClientId] = field(default_factory=set)
    reported: set[ClientId] = field(default_factory=set)
    #: Reason why all clients asked in one phase failed, if they did.
    hopeless: str | None = None
    warnings: set[str] = field(default_factory=set)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def result(self, call: Callable[[], T]) -> T | None:
        """Return `call()`, and add its duration to the server's aggregation time.

        Returns None without calling it if the round is already void. Also returns None, and marks
        the round as void, if `call` raises `RoundVoid`.
        """
        if self.void is not None:
            return None
        try:
            return self.timed(call)
        except RoundVoid as void:
            self.void = void
            return None

    def timed(self, call: Callable[[], T]) -> T:
        """Return `call()`, and add its duration to the server's aggregation time."""
        began = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds["aggregation"] += time.perf_counter() - began


def drive(
    server: ServerHalf,
    carrier: Carrier,
    opening: Mapping[ClientId, Message],
    trains: str,
    charge: Callable[[Collection[ClientId]], None] = lambda asked: None,
) -> Outcome:
    """Run one round to its end. Returns its outcome, also if the round is void.

    `opening` has the first message to each client. `trains` is the name of the phase in which
    clients are asked for their reports. Messages of other phases reveal nothing about an update.

    Before any client is asked for a report, `charge` is called with all clients that will be asked.
    It should save their privacy costs, in case the process is killed during the round. After the
    round, the caller should charge only the clients in the outcome's `charged` instead. These are
    all clients that were asked, except those that the message did not reach, and those that
    answered that they send no report.
    """
    outcome = Outcome()
    messages: Mapping[ClientId, Message] | None = opening
    try:
        while messages is not None:
            assert server.phase is not None, "it has opened a phase"
            if server.phase == trains:
                charge(messages.keys())
            _Phase(server, outcome, messages, trains).play(carrier)
            messages = outcome.timed(server.advance)
    except RoundVoid as void:
        outcome.void = void
    return outcome


class _Phase:
    """One phase of a round: sends its messages and counts the answers."""

    def __init__(
        self,
        server: ServerHalf,
        outcome: Outcome,
        messages: Mapping[ClientId, Message],
        trains: str,
    ) -> None:
        self._server = server
        self._outcome = outcome
        self._messages = messages
        self._asks_reports = server.phase == trains
        self._longest = server.longest
        self._waiting = set(messages)
        #: Clients that certainly sent no report.
        self._without: set[ClientId] = set()
        self._reached = len(messages)
        self._failed = 0

    def play(self, carrier: Carrier) -> None:
        outcome, server, messages = self._outcome, self._server, self._messages
        outcome.bytes_down += _encoded_bytes(messages)
        phase = server.phase or ""
        if _folds(server, carrier):
            answers = carrier.fold(phase, messages, server)
        else:
            answers = carrier.ask(phase, messages)
        for answer in answers:
            self._take(answer)
        outcome.dropped |= self._waiting
        if self._asks_reports:
            outcome.charged |= messages.keys() - self._without
        if 0 < self._failed == self._reached:
            outcome.hopeless, _ = (outcome.failed + outcome.unusable).most_common(1)[0]

    def _take(self, answer: Answer) -> None:
        outcome, client = self._outcome, answer.client
        outcome.seconds["training"] += answer.effort.training_s
        outcome.seconds["protection"] += answer.effort.protection_s
        outcome.seconds["aggregation"] += answer.effort.aggregation_s
        outcome.warnings.update(answer.effort.warnings)
        if answer.effort.unusable is not None:
            outcome.unusable[answer.effort.unusable] += 1
            self._failed += answer.effort.raised
        if isinstance(answer, Unreached):
            self._without.add(client)
            self._reached -= 1
            return
        self._waiting.discard(client)
        match answer:
            case Failed(reason=reason):
                outcome.failed[short(reason)] += 1
                self._failed += 1
                self._without.add(client)
            case Withheld(reason=reason):
                outcome.withheld[short(reason)] += 1
                self._without.add(client)
            case Refused(size=size, reason=reason):
                self._arrived(client, size, reason)
            case Folded(size=size):
                self._arrived(client, size)
            case Report(data=data):
                self._arrived(client, len(data), self._refusal(client, data))

    def _arrived(self, client: ClientId, size: int, refusal: str | None = None) -> None:
        outcome = self._outcome
        outcome.bytes_up += size
        if refusal is not None:
            outcome.rejected[short(refusal)] += 1
        if self._asks_reports:
            outcome.arrived.add(client)
            if refusal is None:
                outcome.reported.add(client)

    def _refusal(self, client: ClientId, data: bytes | memoryview) -> str | None:
        """Pass a client's encoded message to the server. Returns why it was refused, or None."""
        try:
            self._outcome.timed(lambda: self._server.receive(client, decode(data, self._longest)))
        except ReportRejected as rejected:
            return rejected.reason
        except MessageInvalid as invalid:
            return str(invalid)
        return None


def _folds(server: ServerHalf, carrier: Carrier) -> TypeGuard[MergeableHalf]:
    return carrier.beside_server or server.mergeable


def _encoded_bytes(messages: Mapping[ClientId, Message]) -> int:
    """Return the total length of the encoded messages in bytes, counted once for each client."""
    return sum(len(encode(message)) * len(clients) for message, clients in shared(messages))


def shared(messages: Mapping[ClientId, Message]) -> Iterator[tuple[Message, list[ClientId]]]:
    """Yield each message with the clients that receive it.

    Successive clients in `messages` are grouped if their message is the same object.
    """
    last: tuple[Message, list[ClientId]] | None = None
    for client, message in messages.items():
        if last is not None and message is last[0]:
            last[1].append(client)
            continue
        if last is not None:
            yield last
        last = message, [client]
    if last is not None:
        yield last

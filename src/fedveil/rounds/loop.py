"""The one loop that drives a round: carry the messages between the two halves, and count."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, TypeVar

from fedveil.errors import MessageInvalid, ReportRejected, RoundVoid
from fedveil.message import Message, decode, encode
from fedveil.rounds.answers import (
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
    """The server's half of a round, as far as the loop knows it."""

    #: The phase that its last messages have opened; None where it takes no more answers.
    @property
    def phase(self) -> str | None: ...

    #: Whether halves of the same round, each with the reports of other clients, can be merged.
    @property
    def mergeable(self) -> bool: ...

    #: How many bytes an honest answer of the phase has at most; a longer one is not decoded.
    @property
    def longest(self) -> int: ...

    def receive(self, client: ClientId, message: Message) -> None:
        """Check an answer and take it in; raise `ReportRejected` and change nothing otherwise."""

    def advance(self) -> Mapping[ClientId, Message] | None:
        """Close the phase: the next phase's messages, or None when no more talk is needed."""


class MergeableHalf(ServerHalf, Protocol):
    """A half whose running sums can be added to those of another."""

    def merge(self, other: Any) -> None:
        """Add the running sums of another half of the same round, of other clients."""


class Carrier(ABC):
    """Carries messages to clients and answers back.

    A client without an answer has dropped out, and its report may have left it all the same.
    """

    @abstractmethod
    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """The answers, as they come; each is valid until the next one is asked for."""

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        """As `ask`, for a half that can be merged: reports may be folded where they are made.

        `server` holds all of those when the answers have ended. A carrier that brings the reports
        here says nothing of it.
        """
        return self.ask(phase, messages)


@dataclass
class Outcome:
    """What came of a round; `void` says why it ended before its last phase, where it did."""

    void: RoundVoid | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    withheld: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    #: Reports on no update of the client's, as far as whoever carries the messages can see them.
    unusable: Counter[str] = field(default_factory=Counter)
    #: Those that did not answer a message, in whatever phase.
    dropped: set[ClientId] = field(default_factory=set)
    #: Those that a report may have left, whatever became of it: they have spent privacy.
    charged: set[ClientId] = field(default_factory=set)
    #: Those of them whose report arrived, and of these the ones whose report was taken in.
    arrived: set[ClientId] = field(default_factory=set)
    reported: set[ClientId] = field(default_factory=set)
    #: Why every client that was asked in one phase failed; None where one did not.
    hopeless: str | None = None
    warnings: set[str] = field(default_factory=set)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def result(self, call: Callable[[], T]) -> T | None:
        """What `call` makes of the complete round; None where it is void, or turns out to be."""
        if self.void is not None:
            return None
        try:
            return self.timed(call)
        except RoundVoid as void:
            self.void = void
            return None

    def timed(self, call: Callable[[], T]) -> T:
        """What `call` gives; its time is the server's."""
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
    """Drive one round to its end, from its first messages on.

    A report that is refused, a client that withholds one, one whose training raises and one
    without an answer are counted and left out. In the phase `trains` clients are asked for their
    reports: each is charged unless it is known that none has left it, because it says so or was
    never reached. What other phases send says nothing about an update.

    `charge` is called with them before the first of them is asked. What is charged there holds
    should the round never end here; when it ends, `charged` says who is charged in truth.
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
    """One phase: its messages out, and what comes back counted."""

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
        #: Those of which it is known that no report has left them.
        self._without: set[ClientId] = set()
        self._reached = len(messages)
        self._failed = 0

    def play(self, carrier: Carrier) -> None:
        outcome, server, messages = self._outcome, self._server, self._messages
        outcome.bytes_down += _encoded_bytes(messages)
        phase = server.phase or ""
        if _is_mergeable(server):
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
        """Why the server half does not take a message in; None where it has taken it."""
        try:
            self._outcome.timed(lambda: self._server.receive(client, decode(data, self._longest)))
        except ReportRejected as rejected:
            return rejected.reason
        except MessageInvalid as invalid:
            return str(invalid)
        return None


def _is_mergeable(server: ServerHalf) -> TypeGuard[MergeableHalf]:
    return server.mergeable


def _encoded_bytes(messages: Mapping[ClientId, Message]) -> int:
    """The bytes sent to clients; a message that is the same object for all is encoded once."""
    sizes: dict[int, int] = {}
    for message in messages.values():
        if id(message) not in sizes:
            sizes[id(message)] = len(encode(message))
    return sum(sizes[id(message)] for message in messages.values())

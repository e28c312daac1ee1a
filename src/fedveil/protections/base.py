"""The contract between a protection and the engine that drives it.

A protection never sends anything. It is two state machines, and an engine only carries messages
between them: the simulator, Flower and the tests drive the same two objects.

    engine                                   server half              client half
    message = server.opening()               the same for all
    report = client.respond(message, update)                          trains, protects
    server.receive(client, report)           folds, or raises
    messages = server.advance()              None: complete; else the next phase's, one a client
    server.aggregate()                       the update
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld, MessageInvalid, ReportRejected, RoundVoid
from fedveil.message import Message
from fedveil.message import only_fields as only_fields
from fedveil.message import take as take
from fedveil.message import take_array as take_array
from fedveil.privacy.loss import PrivacyLoss
from fedveil.secagg.secret import Secret

ClientId: TypeAlias = int
#: A client's new weights minus the old, flat, in the order of the model's layout.
Update: TypeAlias = npt.NDArray[np.float32]
#: What a protection carries from one round to the next; a checkpoint stores it as a message.
State: TypeAlias = Message
Weighting: TypeAlias = Literal["by_size", "equal"]


@dataclass(frozen=True)
class Spending:
    """One loss, and how many times a single report spends it."""

    loss: PrivacyLoss
    count: int = 1


@dataclass(frozen=True)
class JobContext:
    """What a protection may know of the job that it is made for.

    `job`: a digest of the whole job, the same for all that take part. In simulation (`simulated`)
    keys that outlive a round come from `seed`; elsewhere `roster` has every client's public key,
    and `identity` is this client's own private one.
    """

    weighting: Weighting
    dimension: int
    clients_per_round: int
    rounds: int
    simulated: bool = True
    job: bytes = b""
    seed: int = 0
    roster: Mapping[ClientId, bytes] = field(default_factory=dict)
    identity: Secret | None = None


@dataclass(frozen=True)
class RoundContext:
    """What the server half knows when a round opens; `model` is the global weights, read-only."""

    cohort: Sequence[ClientId]
    round: int
    model: Update
    state: State = field(default_factory=dict)


@dataclass(frozen=True)
class ClientContext:
    """What the client half knows; `model` is the global weights, `examples` the client's own."""

    client: ClientId
    round: int
    model: Update
    examples: int
    entropy: Entropy


@dataclass(frozen=True)
class Aggregate:
    """The outcome of a round: the averaged update, how many reports are in it, the next state."""

    update: npt.NDArray[np.float64]
    reports: int
    state: State = field(default_factory=dict)


class ServerRound(Protocol):
    """The server's half of one round."""

    def opening(self) -> Message:
        """The first message, the same for every invited client."""
        ...

    def receive(self, client: ClientId, message: Message) -> None:
        """Check a report and fold it; raise `ReportRejected` and change nothing if it is wrong."""
        ...

    def advance(self) -> Mapping[ClientId, Message] | None:
        """Close the phase: the next phase's messages, or None when no more talk is needed."""
        ...

    def merge(self, other: Any) -> None:
        """Add the running sums of another server's half of the same round, of other clients."""
        ...

    def aggregate(self) -> Aggregate:
        """The result; raises `RoundVoid` where there is none."""
        ...


class ClientRound(Protocol):
    """The client's half of one round."""

    def wants_update(self, message: Message) -> bool:
        """Whether the answer to `message` needs the update: the engine trains just before it."""
        ...

    def respond(self, message: Message, update: Update | None) -> Message:
        """The answer to `message`; raises `ClientWithheld` where the client reports nothing."""
        ...

    def keep(self) -> State:
        """All that another half of this client and round needs to answer the next message.

        For an engine in which every message meets a new process. Secret, and to be taken up
        once; empty where no further message is answered.
        """
        ...

    def take_up(self, kept: State) -> None:
        """Go on from what an earlier half has kept."""
        ...


class Protection(Protocol):
    """A switch position, made once from the job."""

    #: Whether what a round costs depends on the outcome of earlier ones: the ledger then adds
    #: pure losses, which stays valid, instead of composing distributions fixed in advance.
    adaptive: bool

    def initial_state(self) -> State:
        """The state before the first round."""
        ...

    def spending(self, state: State) -> Sequence[Spending]:
        """What each report of a round that opens with `state` costs its client."""
        ...

    def server_round(self, context: RoundContext) -> ServerRound:
        """The server's half of a round."""
        ...

    def client_round(self, context: ClientContext) -> ClientRound:
        """The client's half of a round."""
        ...


class OneReportRound(ABC):
    """A server half in which every client sends one report; checks what all of them share.

    Halves of the same round may be opened in several places, each with the reports of other
    clients, and merged: into the same bytes, however the clients were dealt. A half that is
    pickled takes along what `merge` reads and nothing else.
    """

    #: The attributes that hold a subclass's running sums.
    sums: ClassVar[tuple[str, ...]]

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._invited = frozenset(context.cohort)
        self._reported: set[ClientId] = set()
        self._open = True

    def opening(self) -> Message:
        """The round's number; a protection with words of its own adds them."""
        return {"round": self._context.round}

    def receive(self, client: ClientId, message: Message) -> None:
        """Check sender, phase and round, then let the protection check and fold the rest."""
        if client not in self._invited:
            raise ReportRejected(client, "unknown sender")
        if not self._open:
            raise ReportRejected(client, "wrong phase")
        if client in self._reported:
            raise ReportRejected(client, "repeated sender")
        try:
            if take(message, "round", int) != self._context.round:
                raise ReportRejected(client, "wrong round")
            self._fold(client, message)
        except MessageInvalid as error:
            raise ReportRejected(client, str(error)) from None
        self._reported.add(client)

    def advance(self) -> None:
        """One report is all there is."""
        self._open = False

    def merge(self, other: OneReportRound) -> None:
        """Add another server's running sums; refuses clients that both have counted."""
        twice = self._reported & other._reported
        if twice or other._context.round != self._context.round or type(other) is not type(self):
            raise ValueError(f"these two halves are not of one round, or share clients {twice}")
        self._merge_sums(other)
        self._reported |= other._reported
        self._invited |= other._invited

    def __getstate__(self) -> dict[str, Any]:
        """The running sums, and whose reports are in them."""
        context = RoundContext((), self._context.round, np.empty(0, np.float32))
        kept = {name: vars(self)[name] for name in ("_invited", "_reported", "_open", *self.sums)}
        return {"_context": context, **kept}

    def aggregate(self) -> Aggregate:
        """The mean of what was folded."""
        if not self._reported:
            raise RoundVoid("report", 0, 1)
        return self._aggregate()

    @property
    def reports(self) -> int:
        """How many reports are folded."""
        return len(self._reported)

    @abstractmethod
    def _fold(self, client: ClientId, message: Message) -> None:
        """Check the protection's own fields completely, then add them to the running sums."""

    @abstractmethod
    def _merge_sums(self, other: Any) -> None:
        """Add the running sums of `other`, of this same type."""

    @abstractmethod
    def _aggregate(self) -> Aggregate:
        """The result; at least one report is folded."""


class OneReportClient(ABC):
    """A client half that answers the opening with its one report."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def wants_update(self, message: Message) -> bool:
        """The only message is the opening."""
        return True

    def respond(self, message: Message, update: Update | None) -> Message:
        """The report, to the opening of this round alone."""
        if update is None or message.get("round") != self._context.round:
            raise ClientWithheld("the message is not the opening of this round")
        if update.shape != self._context.model.shape:
            raise ClientWithheld("the update is not of the length of the model")
        return self._report(message, update)

    def keep(self) -> State:
        """The one report is all there is."""
        return {}

    def take_up(self, kept: State) -> None:
        """There is nothing to take up: an answer was given before."""
        raise ClientWithheld("this client has answered the round before")

    @abstractmethod
    def _report(self, opening: Message, update: Update) -> Message:
        """The report; raises `ClientWithheld` where there is none."""

"""Server and client halves of rounds with several phases. A client answers each phase once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.base.message import Message, Value, int_in, take, text_in
from fedveil.errors import ClientWithheld, InvalidValue, MessageInvalid, ReportRejected, RoundVoid
from fedveil.protections.base import (
    REPORT,
    Aggregate,
    ClientContext,
    Protection,
    RoundContext,
    State,
    Update,
)
from fedveil.rounds.outcomes import ClientId, check_sender


class PhasedRound(ABC):
    """The server half of a round with several phases. It drops clients that miss a phase."""

    mergeable = False
    #: True if a round without reports still has an aggregate.
    may_be_empty = False
    _told: Aggregate | None = None
    #: The bytes that an answer may have, and further bytes for each entry of the model. A half that
    #: knows the exact length of its answers overrides `longest`.
    room, room_an_entry = 1 << 16, 16

    def __init__(self, context: RoundContext, flow: Sequence[str] = (REPORT,)) -> None:
        self._context = context
        self._invited = self._asked = frozenset(context.cohort)
        #: The clients that answered the current phase, or the last phase at the end of the round.
        self._answered: set[ClientId] = set()
        self._flow = iter(flow)
        self.phase: str | None = next(self._flow)

    def opening(self) -> Message:
        return self._words()

    @property
    def longest(self) -> int:
        """The largest number of bytes of an honest client's answer in the current phase."""
        return self.room + self.room_an_entry * len(self._context.model)

    def receive(self, client: ClientId, message: Message) -> None:
        """Check the answer `message` of `client`, and add it to this phase's sums.

        Raises `ReportRejected` if the sender, the phase, the round or a field is wrong.
        """
        asked = self._asked if self.phase is not None and self._told is None else ()
        check_sender(client, self._invited, asked, self._answered)
        try:
            if take(message, "round", int) != self._context.round:
                raise ReportRejected(client, "wrong round")
            self._fold(client, message)
        except MessageInvalid as error:
            raise ReportRejected(client, str(error)) from None
        self._answered.add(client)

    def advance(self) -> Mapping[ClientId, Message] | None:
        self.phase = next(self._flow, None)
        if self.phase is None:
            return None
        messages = self._ask(sorted(self._answered))
        self._asked, self._answered = frozenset(messages), set()
        return messages

    def merge(self, other: Any) -> None:
        raise InvalidValue("this half cannot be merged with another")

    def aggregate(self) -> Aggregate:
        """Return the aggregate. The first call computes it, and can overwrite the sums.

        Raises `RoundVoid` if no client answered, unless the round may be empty (`may_be_empty`).
        """
        if not self._answered and not self.may_be_empty:
            raise RoundVoid("report", 0, 1)
        if self._told is None:
            self._told = self._aggregate()
        return self._told

    @property
    def reports(self) -> int:
        return len(self._answered)

    def _words(self, **fields: Value) -> Message:
        return {"round": self._context.round, "phase": self.phase or "", **fields}

    @abstractmethod
    def _fold(self, client: ClientId, message: Message) -> None:
        """Check the fields of an answer to this phase, and add it to the running sums.

        Raises `MessageInvalid`, and changes nothing, if a field is wrong.
        """

    def _ask(self, answered: Sequence[ClientId]) -> Mapping[ClientId, Message]:
        """Return this phase's message for each client that has `answered` the previous phase."""
        return dict.fromkeys(answered, self._words())

    @abstractmethod
    def _aggregate(self) -> Aggregate:
        """Compute the round's aggregate from the sums.

        It is called only if a client has answered the last phase, or if the class allows an empty
        round (`may_be_empty`).
        """


class PhasedClient(ABC):
    """The client half of a round with several phases. It answers each phase once, in order."""

    def __init__(self, context: ClientContext, protection: Protection) -> None:
        self.protection = protection
        self._context = context
        self._last = -1

    def wants_update(self, message: Message) -> bool:
        return text_in(message, "phase") == self.protection.trains

    def respond(self, message: Message, update: Update | None) -> Message:
        phase, flow = text_in(message, "phase"), self.protection.flow
        if int_in(message, "round") != self._context.round or phase not in flow:
            raise ClientWithheld("the message does not belong to this round")
        if flow.index(phase) <= self._last:
            raise ClientWithheld("phase out of order")
        trains = phase == self.protection.trains
        if trains and (update is None or update.shape != self._context.model.shape):
            raise ClientWithheld("there is no update of the model's length")
        self._last = flow.index(phase)
        answer = self._answer(phase, message, update if trains else None)
        return {"round": self._context.round, **answer}

    def keep(self) -> State:
        return {"last": self._last} if self._last + 1 < len(self.protection.flow) else {}

    def take_up(self, kept: State) -> None:
        self._last = take(kept, "last", int)

    @abstractmethod
    def _answer(self, phase: str, message: Message, update: Update | None) -> Message:
        """Return the answer's fields. Raises `ClientWithheld` if the client refuses to answer.

        `update` is None except in the phase in which clients train.
        """

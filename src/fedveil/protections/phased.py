"""Halves that talk in phases, each of which a client answers once: what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.base.message import Message, Value, take
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
    """A server half that asks in one phase after another; who has not answered is left out."""

    mergeable = False
    #: Whether there is an aggregate where nobody reported.
    may_be_empty = False
    _told: Aggregate | None = None
    #: Bytes that an answer may have, and more of them for each entry of the model; a half that
    #: knows the length of its own answers says so in `longest`.
    room, room_an_entry = 1 << 16, 16

    def __init__(self, context: RoundContext, flow: Sequence[str] = (REPORT,)) -> None:
        self._context = context
        self._invited = self._asked = frozenset(context.cohort)
        #: Those that have answered the phase, and in the end the last one.
        self._answered: set[ClientId] = set()
        self._flow = iter(flow)
        self.phase: str | None = next(self._flow)

    def opening(self) -> Message:
        return self._words()

    @property
    def longest(self) -> int:
        """How many bytes an honest answer of the phase has at most."""
        return self.room + self.room_an_entry * len(self._context.model)

    def receive(self, client: ClientId, message: Message) -> None:
        """Check sender, phase and round, then take in what the phase is about."""
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
        """The same one, whoever asks for it again: it may lie where the sums were."""
        if not self._answered and not self.may_be_empty:
            raise RoundVoid("report", 0, 1)
        if self._told is None:
            self._told = self._aggregate()
        return self._told

    @property
    def reports(self) -> int:
        """How many clients have answered."""
        return len(self._answered)

    def _words(self, **fields: Value) -> Message:
        """A message of the phase."""
        return {"round": self._context.round, "phase": self.phase or "", **fields}

    @abstractmethod
    def _fold(self, client: ClientId, message: Message) -> None:
        """Check the phase's own fields completely, then add them to the running sums.

        Raises `MessageInvalid`, and changes nothing, where they are wrong.
        """

    def _ask(self, answered: Sequence[ClientId]) -> Mapping[ClientId, Message]:
        """What those that have answered the last phase, or some of them, are asked in this one."""
        return dict.fromkeys(answered, self._words())

    @abstractmethod
    def _aggregate(self) -> Aggregate:
        """The result; at least one client has answered the last phase."""


class PhasedClient(ABC):
    """A client half that answers each phase once, in their order."""

    def __init__(self, context: ClientContext, protection: Protection) -> None:
        self.protection = protection
        self._context = context
        self._last = -1

    def wants_update(self, message: Message) -> bool:
        return message.get("phase") == self.protection.trains

    def respond(self, message: Message, update: Update | None) -> Message:
        phase, flow = str(message.get("phase")), self.protection.flow
        if message.get("round") != self._context.round or phase not in flow:
            raise ClientWithheld("the message is not of this round")
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
        """The fields of the answer; `update` is there in the phase that trains.

        Raises `ClientWithheld` where the client says nothing.
        """

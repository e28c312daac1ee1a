"""A protection in which every client sends one report: what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from fedveil.errors import ClientWithheld, MessageInvalid, ReportRejected, RoundVoid
from fedveil.message import Message, take
from fedveil.protections.base import REPORT, Aggregate, ClientContext, RoundContext, State, Update
from fedveil.rounds.answers import ClientId


class OneReportRound(ABC):
    """A server half in which every client sends one report; checks what all of them share.

    Halves of the same round may be opened in several places, each with the reports of other
    clients, and merged: into the same bytes, however the clients were dealt. A half that is
    pickled takes along what `merge` reads and nothing else.
    """

    mergeable = True
    #: The attributes that hold a subclass's running sums.
    sums: ClassVar[tuple[str, ...]]

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._invited = frozenset(context.cohort)
        self._reported: set[ClientId] = set()
        self._open = True

    @property
    def phase(self) -> str | None:
        """There is one, until it is closed."""
        return REPORT if self._open else None

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

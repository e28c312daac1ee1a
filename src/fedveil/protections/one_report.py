"""Server and client halves of rounds in which every client sends one report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from fedveil.base.message import Message, int_in
from fedveil.errors import ClientWithheld
from fedveil.protections.base import ClientContext, RoundContext, State, Update
from fedveil.protections.phased import PhasedRound


class OneReportRound(PhasedRound):
    """The server half of a round in which every client sends one report.

    It checks the sender and the round of a report. Subclasses check the other fields and add them
    up. A round's clients can be divided among several such objects, which `merge` combines.
    """

    mergeable = True
    #: The attributes with a subclass's running sums.
    sums: ClassVar[tuple[str, ...]]

    def opening(self) -> Message:
        return {"round": self._context.round}

    def merge(self, other: OneReportRound) -> None:
        """Add the sums and clients of `other`, which received other clients' reports of this round.

        Raises `ValueError` if both have the same client, if they differ in round or type, or if one
        of them has already returned its aggregate.
        """
        if self._told is not None or other._told is not None:
            raise ValueError("a half that has returned its aggregate has no sums any more")
        twice = self._answered & other._answered
        if twice or other._context.round != self._context.round or type(other) is not type(self):
            raise ValueError(
                f"these two halves do not belong to one round, or share clients {twice}"
            )
        self._merge_sums(other)
        self._answered |= other._answered
        self._invited |= other._invited
        self._asked = self._invited

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: the running sums, and the clients that are in them."""
        context = RoundContext((), self._context.round, np.empty(0, np.float32))
        names = ("_invited", "_asked", "_answered", "phase", *self.sums)
        return {"_context": context, **{name: vars(self)[name] for name in names}}

    @abstractmethod
    def _merge_sums(self, other: Any) -> None: ...


class OneReportClient(ABC):
    """The client half of a round in which every client sends one report, as its only answer."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def wants_update(self, message: Message) -> bool:
        return True

    def respond(self, message: Message, update: Update | None) -> Message:
        """Return the report. Raises `ClientWithheld` unless `message` opens this round."""
        if update is None or int_in(message, "round") != self._context.round:
            raise ClientWithheld("the message is not the opening of this round")
        if update.shape != self._context.model.shape:
            raise ClientWithheld("the update is not of the model's length")
        return self._report(message, update)

    def keep(self) -> State:
        return {}

    def take_up(self, kept: State) -> None:
        raise ClientWithheld("this client has already answered this round")

    @abstractmethod
    def _report(self, opening: Message, update: Update) -> Message:
        """Return the report of `update`, as the answer to the message `opening`.

        Raises `ClientWithheld` if no report can be made.
        """

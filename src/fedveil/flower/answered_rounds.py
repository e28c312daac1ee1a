"""Saves, on the client's own disk, the last round for which the client has trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedveil.base.files import locked
from fedveil.base.message import Message
from fedveil.errors import AnsweredBefore, ClientWithheld
from fedveil.flower.own_file import OwnFile, number_in
from fedveil.protections.base import ClientRound, Protection
from fedveil.protections.last_answered import Answered
from fedveil.protections.own_errors import own_errors


class AnsweredFile(Answered):
    """Saves a round's number on disk before the round's update leaves the client.

    If several processes try to save the same round, only one succeeds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun: int | None = None

    def begin(self, protection: Protection, round: int) -> None:
        """Record `round` before the client trains, if the `protection` has several phases.

        `note` of this object then accepts the round. A training that fails, or a process that dies
        of it, also tells the server something about the examples. So without this record, a server
        could repeat the round with other weights until the training succeeds. Raises
        `AnsweredBefore` as `note` does.
        """
        if len(protection.phases) > 1:
            self.note(round)
            self._begun = round

    def check(self, round: int) -> None:
        with locked(self._path):
            self._check(round)

    def note(self, round: int) -> None:
        if round == self._begun:
            return
        with locked(self._path):
            self._check(round)
            OwnFile(self._path).write(str(round).encode())

    def _check(self, round: int) -> None:
        last = number_in(self._path)
        if last is not None and round <= last:
            raise AnsweredBefore(last)


def check_due(
    answered: AnsweredFile,
    protection: Protection,
    half: Callable[[], ClientRound],
    round: int,
    asked: Message,
) -> None:
    """Raise `ClientWithheld` unless the client now has to train for the message `asked`.

    Otherwise the client would read its examples for a message that it refuses afterwards. `half`
    returns the client's side of the `protection`. A protection with one phase is not checked: only
    if there are several, a client trains once in each `round`.
    """
    if len(protection.phases) == 1:
        return
    answered.check(round)
    with own_errors(protection):
        if not half().wants_update(asked):
            raise ClientWithheld("the message asks for an update that is not due in this phase")

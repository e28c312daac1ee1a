"""Saves, on the client's own disk, the last round for which the client has sent an update."""

from __future__ import annotations

from pathlib import Path

from fedveil.base.files import locked
from fedveil.errors import AnsweredBefore
from fedveil.flower.own_file import OwnFile, number_in
from fedveil.protections.last_answered import Answered


class AnsweredFile(Answered):
    """Saves a round's number on disk before the round's update leaves the client.

    If several processes try to save the same round, only one succeeds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, round: int) -> None:
        with locked(self._path):
            self._check(round)

    def note(self, round: int) -> None:
        with locked(self._path):
            self._check(round)
            OwnFile(self._path).write(str(round).encode())

    def _check(self, round: int) -> None:
        last = number_in(self._path)
        if last is not None and round <= last:
            raise AnsweredBefore(last)

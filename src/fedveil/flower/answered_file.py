"""The last round for which a client's update has left it, in a file that no server sets back."""

from __future__ import annotations

from pathlib import Path

from fedveil._files import alone, write_whole
from fedveil.errors import AnsweredBefore
from fedveil.flower.sealed_state import number_in
from fedveil.protections.answered import Answered


class AnsweredFile(Answered):
    """The number is on the disk before the update leaves, and outlives every restart.

    Of several processes that would answer one round, one does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, round: int) -> None:
        last = number_in(self._path)
        if last is not None and round <= last:
            raise AnsweredBefore(last)

    def note(self, round: int) -> None:
        with alone(self._path):
            self.check(round)
            write_whole(self._path, str(round).encode(), 0o600)

"""The last round for which a client's update has left it, in a file that no server sets back."""

from __future__ import annotations

from pathlib import Path

from fedveil._files import alone, write_whole
from fedveil.errors import AnsweredBefore, DeploymentError
from fedveil.protections.answered import Answered


class AnsweredFile(Answered):
    """The number is on the disk before the update leaves, and outlives every restart.

    Of several processes that would answer one round, one does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, round: int) -> None:
        if not self._path.exists():
            return
        text = self._path.read_text()
        if not text.isdecimal():
            raise DeploymentError(f"{self._path} is damaged: it does not hold a number")
        if round <= int(text):
            raise AnsweredBefore(int(text))

    def note(self, round: int) -> None:
        with alone(self._path):
            self.check(round)
            write_whole(self._path, str(round).encode(), 0o600)

"""The last round for which a client's update has left it, in a file that no server sets back."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedveil._files import write_whole
from fedveil.errors import AnsweredBefore, DeploymentError
from fedveil.protections.base import Answered


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
        with _alone(self._path.parent):
            self.check(round)
            write_whole(self._path, str(round).encode(), 0o600)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes out that come this way; the lock goes with the process that has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""Remembers the last round for which a client has sent its update."""

from __future__ import annotations

from fedveil.errors import AnsweredBefore


class Answered:
    """Remembers the last round for which a client sent its update. A round gets only one update.

    This class stores the round's number in memory. Where a server can restart a round, use a
    subclass that stores it in a file.
    """

    def __init__(self) -> None:
        self.last = -1

    def check(self, round: int) -> None:
        """Raise `AnsweredBefore` if the client has answered `round` or a later one."""
        if round <= self.last:
            raise AnsweredBefore(self.last)

    def note(self, round: int) -> None:
        """Record that `round` is answered. Call it before the update is sent.

        Raises `AnsweredBefore` if the client has answered `round` or a later one.
        """
        self.check(round)
        self.last = round

"""The last round that a client answered with its update."""

from __future__ import annotations

from fedveil.errors import AnsweredBefore


class Answered:
    """The last round for which a client's update was sent. Two updates would reveal more than one.

    This class saves the round's number in memory. If a server could restart a round, a subclass
    saves it in a file.
    """

    def __init__(self) -> None:
        self.last = -1

    def check(self, round: int) -> None:
        """Raise `AnsweredBefore` if the client has already answered `round` or a later one."""
        if round <= self.last:
            raise AnsweredBefore(self.last)

    def note(self, round: int) -> None:
        """Record `round` as answered. Call it before the update is sent.

        Raises `AnsweredBefore` if the client has already answered `round` or a later one.
        """
        self.check(round)
        self.last = round

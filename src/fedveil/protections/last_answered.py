"""The last round that a client answered with its update."""

from __future__ import annotations

from fedveil.errors import AnsweredBefore


class Answered:
    """The last round for which a client's update was sent. Two updates would reveal more than one.

    This class saves it in memory. If a server could restart a round, a subclass saves it in a file.
    """

    def __init__(self) -> None:
        self.last = -1

    def check(self, round: int) -> None:
        """Raise `AnsweredBefore` if `round` or a later one was answered."""
        if round <= self.last:
            raise AnsweredBefore(self.last)

    def note(self, round: int) -> None:
        """Record that `round` is answered, before the update is sent.

        Raises `AnsweredBefore` if `round` or a later one was answered.
        """
        self.check(round)
        self.last = round

"""The last round that a client has answered with its update."""

from __future__ import annotations

from fedveil.errors import AnsweredBefore


class Answered:
    """The last round for which a client's update has left it, where two would tell more than one.

    This one is held in memory; where a server could begin a round again it is in a file.
    """

    def __init__(self) -> None:
        self.last = -1

    def check(self, round: int) -> None:
        """Raise `AnsweredBefore` for that round and any before it."""
        if round <= self.last:
            raise AnsweredBefore(self.last)

    def note(self, round: int) -> None:
        """The same; else it is `round` from now on. The update leaves when this has returned."""
        self.check(round)
        self.last = round

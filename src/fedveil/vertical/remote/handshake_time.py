"""The time that a handshake between parties may take, from its start to its end.

Without a limit, a party that sends one valid message after another would hold the others forever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from fedveil.base.message import Value
from fedveil.link.deadline import NO_DEADLINE, Deadline
from fedveil.link.link import Link

#: The slowest rate at which working parties compare ids.
_IDS_PER_SECOND = 1000


def handshake_s(patience_s: float, followers: int, own: int, most: int) -> float:
    """Return the number of seconds that a handshake with `followers` followers may take.

    It is four times `patience_s`, plus a second for every 1,000 ids that the parties may have to
    compare. `own` is this party's number of ids, and `most` the largest number that it accepts from
    another party. A party without ids compares none.
    """
    ids = followers * (own + most) if own else 0
    return 4 * patience_s + ids / _IDS_PER_SECOND


class InHandshake:
    """A channel for one handshake. After `limit_s` seconds, `receive` raises LinkLost.

    The time begins when `start` is called or when the first message arrives, whichever is earlier.
    """

    def __init__(self, link: Link, limit_s: float) -> None:
        self.peer = link.peer
        self.send = link.send
        self._link, self._limit_s = link, limit_s
        self._deadline = NO_DEADLINE

    def start(self) -> None:
        """Start the time limit of the handshake. Does nothing if it has already started."""
        if self._deadline is NO_DEADLINE:
            end = time.monotonic() + self._limit_s
            self._deadline = Deadline(end, f"ended the handshake in {self._limit_s:,.0f} seconds")

    def receive(self) -> dict[str, Value]:
        message = self._link.receive(self._deadline)
        self.start()
        return message


def in_handshakes(links: Mapping[str, Link], limit_s: float) -> dict[str, InHandshake]:
    """Return the leader's channels for a handshake over `links`, which starts now."""
    channels = {name: InHandshake(link, limit_s) for name, link in links.items()}
    for channel in channels.values():
        channel.start()
    return channels

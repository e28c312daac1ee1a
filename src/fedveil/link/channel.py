"""The exchanges between parties, and two ways to run them: in one process, or over links.

A party is a generator. It never sends or waits itself, but requests one action at a time,

    Send(peer, message)     give `peer` the message; continues at once
    Receive(peer)           continue with the next message of `peer`, in the order it sent them

and returns its result. `drive_together` runs all parties in this process. `drive` runs one party
over a channel to each of its peers.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from fedveil.base.message import Message, Value, decode, encode
from fedveil.errors import FedveilError, LinkLost

T = TypeVar("T")

#: In one process a party pauses once a peer has this many unread messages from it.
_AHEAD = 64


@dataclass(frozen=True, slots=True)
class Send:
    """A request to send `message` to `peer`. Its arrays must not change afterwards."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class Receive:
    """A request to receive the next message from `peer`."""

    peer: str


#: A party's side of a conversation: requests out, received messages in, a result at the end.
Exchange: TypeAlias = Generator[Send | Receive, Message | None, T]


def received(peer: str) -> Exchange[Message]:
    """Request the next message from `peer` and return it."""
    message = yield Receive(peer)
    assert message is not None, "an engine answers a Receive with a message"
    return message


class Channel(Protocol):
    """One party's end of a link. Every message arrives once, whole and in order, or never."""

    peer: str

    def send(self, message: Message) -> None:
        """Send `message` to the peer. May return before it arrives. Raises LinkLost or PeerRefused.

        The arrays of `message` must not change until the peer has them.
        """

    def receive(self) -> dict[str, Value]:
        """Wait for the peer's next message, and return it. Raises LinkLost or PeerRefused."""


def drive(exchange: Exchange[T], channels: Mapping[str, Channel]) -> T:
    """Run one party over its channels and return its result.

    An exception of a channel is raised inside the party, at its request. An exception of the party
    is raised here, after its last messages were sent.
    """
    try:
        request = next(exchange)
        while True:
            answer: Message | None = None
            try:
                if isinstance(request, Send):
                    channels[request.peer].send(request.message)
                else:
                    answer = channels[request.peer].receive()
            except FedveilError as error:
                request = exchange.throw(error)
            else:
                request = exchange.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        exchange.close()


def drive_together(exchanges: Mapping[str, Exchange[T]], *, encoded: bool = False) -> dict[str, T]:
    """Run all parties in this process and return their results.

    Arrays are passed without a copy. With `encoded`, every message is encoded and decoded as
    between machines. A party's first error is raised here, after the others have received its
    messages.
    """
    table = _Table(exchanges, encoded)
    try:
        return table.play()
    finally:
        for exchange in exchanges.values():
            exchange.close()


@dataclass
class _Seat(Generic[T]):
    """A party's state: its exchange, the peer for which it waits, and whether it is done."""

    exchange: Exchange[T]
    waits_for: str | None = None
    done: bool = False


class _Table(Generic[T]):
    def __init__(self, exchanges: Mapping[str, Exchange[T]], encoded: bool) -> None:
        self._seats = {party: _Seat(exchange) for party, exchange in exchanges.items()}
        self._queues: dict[tuple[str, str], deque[Message | bytes]] = defaultdict(deque)
        self._encoded = encoded
        self._results: dict[str, T] = {}
        self._error: Exception | None = None

    def play(self) -> dict[str, T]:
        """Run all parties until they are done, or until one has failed and the others know it."""
        while not all(seat.done for seat in self._seats.values()):
            # Parties with room run first. If all wait for others to read, any may run.
            moved = [party for party in self._seats if self._turn(party, _AHEAD)]
            if not moved and not any(self._turn(party, None) for party in self._seats):
                break
        if self._error is not None:
            raise self._error
        for party, seat in self._seats.items():
            if not seat.done:
                raise LinkLost(f"{party} waits for {seat.waits_for}, which has ended")
        return self._results

    def _turn(self, party: str, ahead: int | None) -> bool:
        """Run `party` until it must wait. Returns True if it made any progress."""
        seat, moved = self._seats[party], False
        while not seat.done:
            answer = None
            if seat.waits_for is not None:
                queue = self._queues[seat.waits_for, party]
                if not queue:
                    break
                message = queue.popleft()
                answer = decode(message) if isinstance(message, bytes) else message
                seat.waits_for = None
            elif ahead is not None and self._unread(party) >= ahead:
                break
            moved = True
            self._advance(party, seat, answer)
        return moved

    def _advance(self, party: str, seat: _Seat[T], answer: Message | None) -> None:
        try:
            request = seat.exchange.send(answer)
        except StopIteration as end:
            self._results[party] = end.value
            seat.done = True
        except Exception as error:
            self._error = self._error or error
            seat.done = True
        else:
            if isinstance(request, Receive):
                seat.waits_for = request.peer
            else:
                message = request.message
                queue = self._queues[party, request.peer]
                queue.append(encode(message) if self._encoded else message)

    def _unread(self, party: str) -> int:
        return max((len(self._queues[party, peer]) for peer in self._seats), default=0)

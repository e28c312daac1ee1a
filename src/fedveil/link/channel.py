"""The parties' exchanges and how to drive them: in one process, or one party over links.

A party does not send or wait. It is a generator that requests one action at a time,

    Send(peer, message)     give `peer` the message; continues at once
    Receive(peer)           continue with the next message of `peer`, in the order it sent them

and returns its result. `drive_together` plays all parties of a run in this process. `drive` plays
one party over a channel to each of its peers.
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
    """A request to give `peer` a message, whose arrays must not change afterwards."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class Receive:
    """A request for the next message of `peer`."""

    peer: str


#: A party's side of a conversation: requests out, received messages in, a result at the end.
Exchange: TypeAlias = Generator[Send | Receive, Message | None, T]


def received(peer: str) -> Exchange[Message]:
    """Return the next message of `peer`."""
    message = yield Receive(peer)
    assert message is not None, "an engine answers a Receive with a message"
    return message


class Channel(Protocol):
    """One party's end of a link. Every message arrives once, whole and in order, or never."""

    peer: str

    def send(self, message: Message) -> None:
        """Send `message` to the peer. May return before it arrives. Raises LinkLost, PeerRefused.

        The arrays of `message` must not change until the peer has them.
        """

    def receive(self) -> dict[str, Value]:
        """Wait for the peer's next message, and return it. Raises LinkLost, PeerRefused."""


def drive(exchange: Exchange[T], channels: Mapping[str, Channel]) -> T:
    """Play one party over its channels to its end, or until a channel or the party raises.

    A channel's exception is raised at the party's request. A party's exception is raised here after
    its last messages to the peers were sent.
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
    """Play all parties in this process, in turns determined only by their requests.

    Arrays are passed without a copy. With `encoded` every message goes through its bytes, as
    between machines. The first error of a party is raised here, after the others have received its
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
    """One party: its exchange, and the peer that it waits for."""

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
        """Play until all are done, or one has failed and the others have been informed."""
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
        """Run a party until it must wait. Returns True if it did anything."""
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

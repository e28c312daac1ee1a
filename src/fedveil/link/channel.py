"""The exchange of messages between parties, in one process or over network links.

A party is a generator. It yields one request at a time, and finally returns its result:

    Send(peer, message)     give `peer` the message; continues at once
    Receive(peer)           continue with the next message of `peer`, in the order it sent them
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
    """A request to send `message` to `peer`. The message's arrays must not change afterwards."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class Receive:
    """A request to receive the next message from `peer`."""

    peer: str


#: A party as a generator: it yields requests, is sent received messages, and returns a result.
Exchange: TypeAlias = Generator[Send | Receive, Message | None, T]


def received(peer: str) -> Exchange[Message]:
    """Request the next message from `peer`, and return it. A party calls this with `yield from`."""
    message = yield Receive(peer)
    assert message is not None, "an engine answers a Receive with a message"
    return message


class Channel(Protocol):
    """One party's end of a connection to `peer`.

    Every message is delivered complete and in order. Otherwise the methods raise LinkLost if the
    peer is unreachable or has left, and PeerRefused if it refuses to work with this party.
    """

    peer: str

    def send(self, message: Message) -> None:
        """Send `message` to the peer. May return before it arrives.

        The caller must not change the message's arrays afterwards, as for the request `Send`.
        """

    def receive(self) -> dict[str, Value]:
        """Wait for the peer's next message, and return it."""


def drive(exchange: Exchange[T], channels: Mapping[str, Channel]) -> T:
    """Run the party `exchange`, and return its result.

    `channels` has a channel to each of the party's peers. An error of a channel is raised inside
    the party, at the request that caused the error.
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
    """Run all parties in this process, and return their results by party.

    If `encoded` is True, every message is encoded and decoded as between machines. If a party
    fails, the others continue until they need its messages. Then the party's error is raised.
    """
    table = _Table(exchanges, encoded)
    try:
        return table.play()
    finally:
        for exchange in exchanges.values():
            exchange.close()


@dataclass
class _Seat(Generic[T]):
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
        while not all(seat.done for seat in self._seats.values()):
            # Parties whose messages have been read run first. If there are none, any party may run.
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
        """Run `party` until it ends or waits for a message. Returns True if it made any progress.

        Also pauses `party` before it runs on if one of its peers has not yet read `ahead` or more
        of its messages. If `ahead` is None, there is no such limit.
        """
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

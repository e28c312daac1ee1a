"""A channel over streams that may break. Every message arrives once, complete and in order.

Messages are numbered from 1. Unacknowledged messages are sent again on the next stream. A stream
carries frames:

    frame := number (8 bytes) arrived (8 bytes) kind (1 byte) body
    kind  := 0  only an acknowledgement, number 0
           | 1  a message, encoded in the body
           | 2  the last frame of this side: the body is the reason, empty if all is well
           | 3  a refusal, also the last frame of this side: the body is the reason

`arrived` is the number of messages received from the other side. If a `Greeting` shows that another
process has replaced the peer's process, both sides number their messages from 1 again.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Iterator

from fedveil.base.message import Message, Value, check_carried, decode, encode
from fedveil.entropy import Secure
from fedveil.errors import FedveilError, LinkLost, MessageInvalid, PeerRefused, PeerRestarted
from fedveil.link.deadline import NO_DEADLINE, Deadline
from fedveil.rounds.outcomes import LONGEST_LOGGED, short

PROTOCOL = 2
SESSION_BYTES = 16
#: Bytes that may have arrived and be unread before a link stops reading its stream.
INBOX_BYTES = 256 << 20
#: Bytes of messages that the peer has not acknowledged, above which `send` waits. A few messages of
#: any size may always wait: both parties may send several tensors before they receive one.
OUTBOX_BYTES = 2 << 30
_AHEAD = 16
#: Memory that a message in a queue takes besides its bytes, rounded up. Without it, a peer could
#: fill an inbox with messages that have no bytes.
_PER_MESSAGE_BYTES = 512
#: A separate acknowledgement is sent once this many bytes have arrived without one.
ACK_BYTES = 4 << 20
#: Seconds that `close` waits for the peer to receive everything.
CLOSE_S = 10.0

_HEADER = struct.Struct("<QQB")
_ACK, _MESSAGE, _END, _REFUSAL = range(4)
_LOOK_AGAIN_S = 60.0


class Link:
    """One party's end of the link to `peer`: a `Channel` that uses one stream after another.

    A stream is one connection, which may break and be replaced. `send` queues a message. It first
    waits if too many earlier messages are not acknowledged: more than `_AHEAD` messages with more
    than `OUTBOX_BYTES` in total.

    `send` and `receive` raise LinkLost if they wait for the peer for `patience_s` seconds without a
    stream, for twice this time on one open stream, or for four times this time over several
    streams. If the peer's process is replaced, they raise PeerRestarted until this party calls
    `begin` or `await_another`. Only one thread may send and receive.
    """

    def __init__(self, peer: str, *, patience_s: float = 600.0) -> None:
        self.peer = peer
        self.session = Secure().token(SESSION_BYTES)
        #: The number of streams after the first, and the seconds without a stream.
        self.reconnections = 0
        self.away_s = 0.0
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._readable = threading.Condition(self._lock)
        self._writable = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._peer_session = b""
        self._restarted = False
        self._stream = 0  # the number of the attached stream; 0 while none is
        self._streams = 0
        self._down_since = self._up_since = time.monotonic()
        self._down_why = ""
        self._failure: FedveilError | None = None
        self._closed = False
        self._forget_conversation()

    def _forget_conversation(self) -> None:
        self._unacknowledged: deque[tuple[int, bytes]] = deque()
        self._sent = 0  # number of the last message queued for sending
        self._written = 0  # number of the last one written to the stream
        self._arrived = 0
        self._acknowledged = 0  # number of arrivals acknowledged to the peer
        self._unacknowledged_bytes = 0
        self._outbox_bytes = 0
        self._inbox: deque[memoryview] = deque()
        self._inbox_bytes = 0
        self._ended: str | None = None  # the peer's final frame
        self._ending = False

    # --- the channel

    def begin(self) -> None:
        with self._lock:
            self._restarted = False

    def send(self, message: Message) -> None:
        with self._lock:
            self._check()
            self._await_acknowledgements()
            header = self._header(self._sent + 1, _MESSAGE)
        frame = encode(message, header=header)
        check_carried(f"what {self.peer} is due", len(frame))
        with self._lock:
            self._check()
            self._hand_over(frame)

    def receive(self, deadline: Deadline = NO_DEADLINE) -> dict[str, Value]:
        """Wait for the peer's next message, and return it. Raises `LinkLost` after `deadline`."""
        with self._lock:
            self._check()
            since, left = time.monotonic(), deadline.left(self.peer)
            while not self._inbox:
                self._check_not_ended()
                self._readable.wait(min(self._patience_left(since), left))
                self._check()
                left = deadline.left(self.peer)
            body = self._inbox.popleft()
            self._inbox_bytes -= len(body) + _PER_MESSAGE_BYTES
            self._room.notify_all()
        try:
            return decode(body)
        except MessageInvalid as error:
            raise LinkLost(f"{self.peer} sent what is not a message: {error}") from None

    def refuse(self, reason: str) -> None:
        """Send the peer a refusal that states `reason`, as the last frame of this side."""
        self._finish(_REFUSAL, reason)

    def await_another(self) -> None:
        """Wait until a new process of the peer has replaced its current process.

        Raises `LinkLost` if no new process connects in time, or if the current one does not end.
        """
        with self._lock:
            since = time.monotonic()
            while not self._restarted:
                if self._failure is not None:
                    raise self._failure
                self._readable.wait(self._patience_left(since, "not ended its process"))
            self._restarted = False

    def close(self, reason: str | None = "") -> None:
        """End this side of the link, and wait briefly until the peer has received everything.

        Sends the peer the `reason`: "" if nothing went wrong. None lets the peer wait instead.
        """
        if reason is not None:
            self._finish(_END, reason)
        with self._lock:
            self._closed, self._stream = True, 0
            self._wake_all()

    @property
    def is_over(self) -> bool:
        """True if the link was closed, has failed or was ended by the peer."""
        with self._lock:
            return self._over()

    @property
    def is_connected(self) -> bool:
        """True if the link has a stream and is not over."""
        with self._lock:
            return self._stream != 0 and not self._over()

    # --- called by streams

    def greeting(self) -> tuple[bytes, bytes, int]:
        """Return the fields `session`, `known` and `arrived` of this party's `Greeting`.

        `session` identifies this party's process, and `known` the last process of the peer that
        this party has met. `arrived` is the number of messages received from that process.
        """
        with self._lock:
            return self.session, self._peer_session, self._arrived

    def attach(self, session: bytes, known: bytes, arrived: int) -> int:
        """Register a new stream to the peer. Returns the stream's number.

        The arguments are from the peer's `Greeting` on this stream. `session` identifies the peer's
        process. `known` identifies the last process of this party that the peer has met, and
        `arrived` is the number of messages that the peer has received from that process.
        """
        with self._lock:
            if session != self._peer_session:
                if self._peer_session:
                    self._restarted = True
                    self._forget_conversation()
                self._peer_session = session
            # The peer's count does not apply if it is of messages from an earlier own process.
            had = arrived if known == self.session else 0
            if not 0 <= had <= self._sent:
                raise MessageInvalid(f"{had} messages have arrived of {self._sent}")
            self._acknowledge(had)
            self._written = had
            if self._streams:
                self.reconnections += 1
                self.away_s += time.monotonic() - self._down_since
            self._streams += 1
            self._stream = self._streams
            self._up_since = time.monotonic()
            self._wake_all()
            return self._stream

    def detach(self, stream: int, why: str = "") -> None:
        """End stream number `stream`, unless a newer stream has replaced it.

        `why` is the reason, which LinkLost states if no other stream opens in time.
        """
        with self._lock:
            if stream == self._stream != 0:
                self._stream = 0
                self._down_since, self._down_why = time.monotonic(), why
                self._wake_all()

    def absent(self, why: str) -> None:
        """Store the reason `why` there is no stream. A later LinkLost error states this reason."""
        with self._lock:
            self._down_why = why

    def fail(self, error: FedveilError) -> None:
        """Make `send` and `receive` raise `error` from now on."""
        with self._lock:
            self._failure = self._failure or error
            self._wake_all()

    def frames(self, stream: int) -> Iterator[bytes]:
        """Yield the frames to send on stream number `stream`, until this stream ends."""
        while True:
            with self._lock:
                while (frame := self._next_frame(stream)) is None:
                    if stream != self._stream:
                        return
                    self._writable.wait()
            yield frame

    def take(self, stream: int, frame: bytes) -> None:
        """Process a frame of stream number `stream`. Waits while the inbox is too full."""
        if len(frame) < _HEADER.size:
            raise MessageInvalid(f"a frame of {len(frame)} bytes is too short")
        number, acknowledged, kind = _HEADER.unpack_from(frame)
        body = memoryview(frame)[_HEADER.size :]
        with self._lock:
            if stream != self._stream:
                return
            if acknowledged > self._sent:
                raise MessageInvalid(f"{acknowledged} messages have arrived of {self._sent}")
            self._acknowledge(acknowledged)
            if kind == _ACK or number <= self._arrived:
                return
            if number != self._arrived + 1:
                raise MessageInvalid(f"message {number} follows message {self._arrived}")
            self._accept(kind, body)
            while self._inbox_bytes > INBOX_BYTES and stream == self._stream:
                self._room.wait()

    def belongs_to(self, session: bytes) -> bool:
        """Return True if `session` identifies the peer's process at the other end of this link."""
        with self._lock:
            return session == self._peer_session

    # --- called under the lock

    def _over(self) -> bool:
        return self._closed or self._failure is not None or self._ended is not None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._restarted:
            raise PeerRestarted(f"{self.peer} has started again")
        if self._closed:
            raise LinkLost(f"the link to {self.peer} is closed")

    def _check_not_ended(self) -> None:
        if self._ended is not None:
            said = f": {self._ended}" if self._ended else ""
            raise LinkLost(f"{self.peer} has ended{said}")

    def _await_acknowledgements(self) -> None:
        """Wait while too many sent messages are not acknowledged.

        These are more than `_AHEAD` messages, with more than `OUTBOX_BYTES` in total. Raises
        LinkLost or PeerRefused if the peer ends the link, or acknowledges nothing for too long.
        """
        held, heard = self._outbox_bytes, time.monotonic()
        while self._outbox_bytes > OUTBOX_BYTES and len(self._unacknowledged) > _AHEAD:
            self._check_not_ended()
            if self._outbox_bytes < held:
                held, heard = self._outbox_bytes, time.monotonic()
            what = f"acknowledged nothing of {held / 1e9:.1f} GB"
            self._readable.wait(self._patience_left(heard, what))
            self._check()

    def _patience_left(self, since: float, what: str = "sent nothing") -> float:
        """Return the seconds until the next check. Raises `LinkLost` if no time is left.

        `since` is the time at which this party began to wait, perhaps on an earlier stream. `what`
        completes the error's sentence "the peer has ... for n seconds".
        """
        now, total = time.monotonic(), 4 * self._patience_s
        if self._stream:
            left = max(since, self._up_since) + 2 * self._patience_s - now
            if left <= 0:
                raise LinkLost(
                    f"{self.peer} has {what} for {2 * self._patience_s:g} seconds and its link "
                    f"is up: what it computes hangs, or takes longer than --patience has it"
                )
        else:
            left = self._down_since + self._patience_s - now
            if left <= 0:
                why = f": {self._down_why}" if self._down_why else ""
                ever = "was away" if self._streams else "did not come"
                raise LinkLost(f"{self.peer} {ever} for {self._patience_s:g} seconds{why}")
        if now >= since + total:
            raise LinkLost(
                f"{self.peer} has {what} for {total:g} seconds, in which its link broke and was "
                f"opened again"
            )
        return min(left, since + total - now, _LOOK_AGAIN_S)

    def _header(self, number: int, kind: int) -> bytes:
        self._acknowledged, self._unacknowledged_bytes = self._arrived, 0
        return _HEADER.pack(number, self._arrived, kind)

    def _hand_over(self, frame: bytes) -> None:
        self._sent += 1
        self._unacknowledged.append((self._sent, frame))
        self._outbox_bytes += len(frame) + _PER_MESSAGE_BYTES
        self._writable.notify_all()

    def _acknowledge(self, count: int) -> None:
        held = self._outbox_bytes
        while self._unacknowledged and self._unacknowledged[0][0] <= count:
            self._outbox_bytes -= len(self._unacknowledged.popleft()[1]) + _PER_MESSAGE_BYTES
        if self._outbox_bytes < held:
            self._readable.notify_all()

    def _next_frame(self, stream: int) -> bytes | None:
        if stream != self._stream:
            return None
        if self._unacknowledged and self._unacknowledged[-1][0] > self._written:
            first = self._unacknowledged[0][0]
            self._written = max(self._written + 1, first)
            return self._unacknowledged[self._written - first][1]
        last_word = self._ended is not None and self._acknowledged < self._arrived
        if last_word or self._unacknowledged_bytes >= ACK_BYTES:
            return self._header(0, _ACK)
        return None

    def _accept(self, kind: int, body: memoryview) -> None:
        if self._ended is not None:
            raise MessageInvalid("a frame follows the last one")
        self._arrived += 1
        self._unacknowledged_bytes += len(body)
        if kind == _MESSAGE:
            self._inbox.append(body)
            self._inbox_bytes += len(body) + _PER_MESSAGE_BYTES
        elif kind in (_END, _REFUSAL):
            self._ended = _sentence(body)
            if kind == _REFUSAL:
                reason = self._ended or "it gave no reason"
                self._failure = PeerRefused(f"{self.peer} refuses: {reason}")
        else:
            raise MessageInvalid(f"a frame has the unknown kind {kind}")
        if self._ended is not None or self._unacknowledged_bytes >= ACK_BYTES:
            self._writable.notify_all()
        self._readable.notify_all()

    def _finish(self, kind: int, reason: str) -> None:
        """Send the last frame: an `_END` or a `_REFUSAL`. Waits up to `CLOSE_S` for its arrival."""
        deadline = time.monotonic() + CLOSE_S
        with self._lock:
            if self._ending or self._closed or self._restarted or not self._peer_session:
                return
            self._ending = True
            body = reason.encode()[:LONGEST_LOGGED]
            self._hand_over(self._header(self._sent + 1, kind) + body)
            while self._unacknowledged and not self._restarted:
                over = self._ended is not None or self._failure is not None
                left = deadline - time.monotonic()
                if left <= 0 or (over and not self._stream):
                    break
                self._readable.wait(left)

    def _wake_all(self) -> None:
        for condition in (self._readable, self._writable, self._room):
            condition.notify_all()


def _sentence(body: memoryview) -> str:
    text = str(body[:LONGEST_LOGGED], "utf-8", "ignore")  # its end may be half a character
    return short(text, LONGEST_LOGGED)

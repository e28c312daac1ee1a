"""When a link's streams begin and end: what is counted, waited for and said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
from test_link import Stream, pair

from fedveil.errors import LinkLost, MessageInvalid, PeerRefused
from fedveil.link import link as links
from fedveil.link.link import Link


class Clock:
    """A clock for links. A wait for a message ends by `during`, or at its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=lambda: self.now))

    def waits_of(self, link: Link, during: Iterable[Callable[[], object]]) -> list[float]:
        """Replace the waits of a link, whose lock is held. Returns the list of their times."""
        waited, left = list[float](), iter(during)

        def wait(seconds: float) -> None:
            waited.append(seconds)
            next(left, lambda: None)()
            self.now += seconds

        link._readable.wait = wait  # type: ignore[method-assign, assignment]
        return waited


def test_time_without_a_stream_is_counted_and_a_new_stream_is_waited_for_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, (one, other) = Clock(monkeypatch), (Link("b", patience_s=10), Link("a"))
    first = Stream(one, other)
    clock.now = 103.0
    first.cut()
    clock.now = 110.0
    assert (one.reconnections, one.away_s) == (0, 0.0)
    second = Stream(one, other)
    assert (one.reconnections, one.away_s) == (1, 7.0)
    clock.now = 115.0

    def replaced() -> None:
        one._up_since = clock.now + 8.0  # another stream comes while `receive` waits

    waited = clock.waits_of(one, [replaced])
    with pytest.raises(LinkLost, match="has sent nothing for 20 seconds"):
        one.receive()
    assert waited == [20.0, 8.0]
    assert second.numbers[0] == 2


def test_an_older_stream_neither_ends_nor_feeds_the_newer_one() -> None:
    one, other = pair()
    old = Stream(one, other)
    other.send({"n": 1})
    late = other._next_frame(old.numbers[1])
    assert late is not None
    new = Stream(one, other)
    one.take(old.numbers[0], late)
    assert one.greeting()[2] == 0
    one.detach(old.numbers[0], "the stream broke")
    new.carry_all()
    assert one.receive() == {"n": 1}


def test_a_link_that_has_ended_or_failed_is_over_and_keeps_its_first_reason() -> None:
    one, other = pair()
    stream = Stream(one, other)
    assert not other.is_over
    ending = threading.Thread(target=one.close, args=("x\n\x1b" + "é" * 2000,))
    ending.start()
    while not stream.carry(0):
        time.sleep(0.001)
    stream.carry_all()
    ending.join()
    assert other.is_over
    with pytest.raises(LinkLost, match=r"^leader has ended: 'x\\n\\x1bé{998}'$") as said:
        Link.receive(other)
    assert "\x1b" not in str(said.value)
    failed = Link("c")
    for why in ("first", "second"):
        failed.fail(LinkLost(why))
    assert failed.is_over
    with pytest.raises(LinkLost, match="first"):
        failed.receive()


def test_what_waits_on_a_stream_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader waits for room in the inbox, and a writer for something to send."""
    monkeypatch.setattr(links, "INBOX_BYTES", 1000)
    one, other = pair()
    stream = Stream(one, other)
    for number in range(8):
        other.send({"n": number})
    writing = threading.Thread(target=lambda: [*one.frames(stream.numbers[0])], daemon=True)
    reading = threading.Thread(target=lambda: [stream.carry(1) for _ in range(8)], daemon=True)
    for thread in (writing, reading):
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    Stream(one, other)
    for thread in (writing, reading):
        thread.join(5)
        assert not thread.is_alive()


def test_a_link_is_connected_while_it_has_a_stream_and_is_not_over() -> None:
    one, other = pair()
    assert not one.is_connected
    stream = Stream(one, other)
    assert one.is_connected
    one.take(stream.numbers[0], links._HEADER.pack(1, 0, links._END))
    other.fail(LinkLost("why"))
    assert not one.is_connected
    assert not other.is_connected
    third, fourth = pair()
    Stream(third, fourth).cut()
    assert not third.is_connected


def test_a_peer_that_reads_slowly_is_waited_for_after_each_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "OUTBOX_BYTES", 50_000)
    clock, (one, other) = Clock(monkeypatch), (Link("b", patience_s=10), Link("a"))
    Stream(one, other)
    with one._lock:
        for _ in range(20):
            one._hand_over(bytes(5000))
    waited = clock.waits_of(one, [lambda: one._acknowledge(1), lambda: one._acknowledge(2)])
    with pytest.raises(LinkLost, match=r"^b has acknowledged nothing of 0\.0 GB for 20 seconds"):
        one.send({"n": 1})
    assert waited == [20.0, 20.0, 20.0]


def test_a_sentence_without_a_reason_says_so_or_ends() -> None:
    one, other = pair()
    stream = Stream(one, other)
    one.take(stream.numbers[0], links._HEADER.pack(1, 0, links._REFUSAL))
    with pytest.raises(PeerRefused, match=r"^follower refuses: it gave no reason$"):
        one.receive()
    with pytest.raises(LinkLost, match=r"^bank did not come for 0 seconds$"):
        Link("bank", patience_s=0.0).receive()


def test_a_greeting_claims_no_message_beyond_the_last_and_no_part_of_a_session() -> None:
    one, other = pair()
    stream = Stream(one, other)
    for number in (1, 2, 3):
        one.send({"n": number})
    stream.carry_all()
    one.attach(other.session, one.session, 3)
    with pytest.raises(MessageInvalid, match=r"^4 messages have arrived of 3$"):
        one.attach(other.session, one.session, 4)
    assert one.belongs_to(other.session)
    assert not any(one.belongs_to(other.session[:length]) for length in range(16))


def test_a_link_that_was_closed_before_its_peer_came_says_nothing_more() -> None:
    one, other = pair()
    one.close()
    stream = Stream(one, other)
    one.refuse("the jobs differ")
    assert one._next_frame(stream.numbers[0]) is None

"""When a link's streams begin and end: what is counted, waited for and said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
from test_link import Stream, pair

from fedveil.errors import LinkLost
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

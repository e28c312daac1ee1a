"""A handshake ends in time, whatever valid messages the other side sends."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import Message
from fedveil.errors import ExchangeError, LinkLost, PeerRestarted
from fedveil.link.channel import drive
from fedveil.link.deadline import NO_DEADLINE
from fedveil.link.link import Link
from fedveil.link.streams import Address
from fedveil.vertical.remote import handshake, sessions
from fedveil.vertical.remote.handshake_state import Standing
from fedveil.vertical.remote.handshake_time import InHandshake, handshake_s, in_handshakes
from fedveil.vertical.remote.sessions import Attentive, Meeting
from fedveil.vertical.scoring import sources

LEADS = {"split": SimpleNamespace(leader="lead", followers=("bank", "shop"))}
PLACE = Meeting(Address("127.0.0.1", 1), None, 7.5)
IDS: Any = {"train": np.arange(5), "test": np.arange(3)}


class Endless:
    """A link whose peer sends one message after another, and never the one that ends it."""

    peer = "lead"

    def __init__(self, message: Callable[[int], Message]) -> None:
        self.sent: list[Message] = []
        self._number, self._message = 0, message

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def receive(self, deadline: Any = NO_DEADLINE) -> Message:
        deadline.left(self.peer)
        self._number += 1
        return self._message(self._number)


def test_the_time_of_a_handshake_grows_with_the_ids_that_it_may_compare() -> None:
    assert handshake_s(7.5, 2, 5_000, 13_000) == 30 + 36
    assert handshake_s(7.5, 3, 0, 1 << 62) == 30
    assert handshake_s(math.inf, 1, 5, 20) == math.inf


def test_a_leader_that_begins_again_and_again_does_not_hold_a_follower() -> None:
    begin = {
        "kind": "begin", "run": bytes(16), "purpose": "train", "order_seed": 0,
        "align_by": "digests", "key": bytes(32), "examples": b"", "ids_train": 4, "ids_test": 2,
    }  # fmt: skip
    link: Any = Endless(lambda number: {**begin, "attempt": number})
    own = Standing("bank", {}, {}, IDS, align_by="digests")
    began = time.monotonic()
    with pytest.raises(LinkLost, match=r"^lead has not ended the handshake in 1 seconds$"):
        drive(handshake.follow(own, "lead"), {"lead": InHandshake(link, 0.6)})
    assert 0.6 <= time.monotonic() - began < 20
    assert [answer["attempt"] for answer in link.sent[:3]] == [1, 2, 3]


def test_a_follower_with_old_messages_without_end_does_not_hold_the_leader() -> None:
    link: Any = Endless(lambda number: {"kind": "tensor", "step": number})
    link.peer = "bank"
    own = Standing("lead", {}, {}, IDS, align_by="digests")
    leading = handshake.lead(own, ("bank",), attempt=2, purpose="train", order_seed=0)
    with pytest.raises(LinkLost, match=r"^bank has not ended the handshake in 0 seconds$"):
        drive(leading, in_handshakes({"bank": link}, 0.3))


def test_a_followers_time_starts_with_the_leaders_first_message() -> None:
    """A follower may wait long for its leader. Its clock runs on over later messages."""
    link: Any = Endless(lambda number: {"number": number})
    channel = InHandshake(link, 0.4)
    time.sleep(0.5)
    assert channel.receive() == {"number": 1}
    assert channel.receive() == {"number": 2}
    time.sleep(0.25)
    assert channel.receive() == {"number": 3}
    time.sleep(0.25)
    with pytest.raises(LinkLost, match=r"^lead has not ended"):
        channel.receive()


def test_a_link_waits_no_longer_than_the_deadline() -> None:
    one, other = Link("bank", patience_s=40), Link("lead", patience_s=40)
    greetings = one.greeting(), other.greeting()
    one.attach(*greetings[1])
    ended: list[str] = []

    def waits() -> None:
        try:
            in_handshakes({"bank": one}, 0.2)["bank"].receive()
        except LinkLost as error:
            ended.append(str(error))

    waiting = threading.Thread(target=waits, daemon=True)
    waiting.start()
    waiting.join(20)
    assert ended == ["bank has not ended the handshake in 0 seconds"]


class Reached(ExchangeError):
    pass


def session_of(
    side: str, driven: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, **more: Any
) -> None:
    """Run one side of a session without links, whose handshakes `driven` replaces."""
    link = SimpleNamespace(send=print, begin=lambda: None, close=lambda reason: None)
    monkeypatch.setattr(
        sessions, "Link", lambda peer, **named: SimpleNamespace(peer=peer, **vars(link))
    )
    for name in ("Listener", "Dialer"):
        monkeypatch.setattr(sessions, name, lambda *given: Place())
    monkeypatch.setattr(sessions, "drive", driven)
    machine: Any = SimpleNamespace(
        **LEADS, party=side, folder=None, job=SimpleNamespace(seed=0), keep_run=print,
        log_refusal=print,
        standing=lambda: Standing(side, {}, {}, IDS, most_ids=3000), **more,
    )  # fmt: skip
    (sessions.lead if side == "lead" else sessions.follow)(machine, PLACE)


@pytest.mark.parametrize("side", ["lead", "bank"])
def test_a_session_limits_each_handshake(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times 7.5 s, and the ids of two followers: 2 · (8 + 3,000) / 1,000 s."""
    seen: list[tuple[str, float, bool]] = []

    def driven(exchange: Any, channels: dict[str, Any]) -> None:
        seen.extend((n, c._limit_s, c._deadline is NO_DEADLINE) for n, c in channels.items())
        raise Reached("the handshake")

    with pytest.raises(Reached):
        session_of(side, driven, monkeypatch)
    limit_s = pytest.approx(36.016)
    both = [("bank", limit_s, False), ("shop", limit_s, False)]
    assert seen == (both if side == "lead" else [("lead", limit_s, True)])


@pytest.mark.parametrize(
    ("side", "limited"), [("lead", [True] * 4), ("bank", [False, True, True, False])]
)
def test_a_handshake_in_the_middle_of_a_session_has_all_of_its_time_and_no_more(
    side: str, limited: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's message has begun it. Only the wait for a new leader has no limit."""
    deadlines: list[Any] = []
    begin = {"kind": "begin"}
    ends = iter([
        sessions.StartOver(begin), sessions.StartOver(begin),
        PeerRestarted("it has started again"), Reached("enough"),
    ])  # fmt: skip

    def driven(exchange: Any, channels: dict[str, Any]) -> Any:
        deadlines.append(next(iter(channels.values()))._deadline)
        return SimpleNamespace(purpose="train", notes=(), step=0)

    def play(*given: Any, **named: Any) -> None:
        raise next(ends)

    with pytest.raises(Reached):
        session_of(side, driven, monkeypatch, play=play)
    assert [deadline is not NO_DEADLINE for deadline in deadlines] == limited
    own = [deadline for deadline in deadlines if deadline is not NO_DEADLINE]
    assert len(set(map(id, own))) == len(own)


class Place:
    address = None

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_scoring_leader_that_begins_again_and_again_does_not_hold_a_follower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each begin ends an attempt, not the time. A new process of the leader has all of it again."""
    deadlines: list[Any] = []
    restarts = iter([False, False, True, False])

    def driven(exchange: Any, channels: dict[str, Any]) -> None:
        (channel,) = channels.values()
        assert isinstance(channel, Attentive)
        timed = channel._link
        deadlines.append(timed._deadline)
        assert timed._limit_s == pytest.approx(30 + 2 * (3 + 7) / 1000)
        again = next(restarts, None)
        if again is None:
            raise Reached("enough")
        if again:
            raise PeerRestarted("lead has started again")
        raise sessions.StartOver({"kind": "begin"})

    link = SimpleNamespace(peer="lead", send=print, begin=lambda: None, close=lambda reason: None)
    monkeypatch.setattr(sources, "Link", lambda *given, **named: link)
    monkeypatch.setattr(sources, "Dialer", lambda *given: Place())
    monkeypatch.setattr(sources, "drive", driven)
    party: Any = SimpleNamespace(
        **LEADS, name="bank", ids=range(3), most_ids=7, use=print, keep_account=lambda: None
    )
    with pytest.raises(Reached):
        sources.follow(party, PLACE)
    first, second, third, fresh, last = deadlines
    assert first is fresh is NO_DEADLINE
    assert second is third is not NO_DEADLINE
    assert last.at > third.at

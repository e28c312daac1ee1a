"""The link's promise, every message once and in order, whatever its streams do."""

from __future__ import annotations

import math
import threading
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.base import message
from fedveil.errors import LinkLost, MessageInvalid, MessageTooLong, PeerRefused, PeerRestarted
from fedveil.link import link as links
from fedveil.link.link import Link
from fedveil.vertical.crossing import from_wire, to_wire
from fedveil.vertical.schedule import Transfer
from fedveil.vertical.split import Crossing


class Stream:
    """A stream between two links that loses what has not been carried over when it breaks."""

    def __init__(self, one: Link, other: Link) -> None:
        self.ends = (one, other)
        said = [end.greeting() for end in self.ends]
        self.numbers = [one.attach(*said[1]), other.attach(*said[0])]

    def carry(self, sender: int, *, lose: bool = False) -> bool:
        """Move one frame, or let it vanish on its way; whether there was one."""
        frame = self.ends[sender]._next_frame(self.numbers[sender])
        if frame is not None and not lose:
            self.ends[1 - sender].take(self.numbers[1 - sender], frame)
        return frame is not None

    def carry_all(self) -> None:
        while self.carry(0) or self.carry(1):
            pass

    def cut(self) -> None:
        for end, number in zip(self.ends, self.numbers, strict=True):
            end.detach(number, "cut")


def pair() -> tuple[Link, Link]:
    return Link("follower", patience_s=5), Link("leader", patience_s=5)


ACTIONS = st.lists(
    st.sampled_from(["send 0", "send 1", "carry 0", "carry 1", "cut", "cut, frames under way"]),
    max_size=60,
)


@given(ACTIONS)
def test_every_message_arrives_once_and_in_order_over_any_breaks(actions: list[str]) -> None:
    ends = pair()
    sent: list[list[int]] = [[], []]
    stream = Stream(*ends)
    for action in actions:
        match action.split(" ", 1):
            case ["send", side]:
                who = int(side)
                sent[who].append(len(sent[who]))
                ends[who].send({"n": sent[who][-1]})
            case ["carry", side]:
                stream.carry(int(side))
            case [_]:
                stream.cut()
                stream = Stream(*ends)
            case _:
                stream.carry(0, lose=True)
                stream.carry(1, lose=True)
                stream.cut()
                stream = Stream(*ends)
    stream.carry_all()
    for who in (0, 1):
        assert [ends[1 - who].receive()["n"] for _ in sent[who]] == sent[who]
        ends[who].send({"n": -1})  # brings the acknowledgement of all that came
        stream.carry_all()
        assert ends[1 - who].receive() == {"n": -1}
    assert not ends[0]._unacknowledged
    assert stream.carry(0) is stream.carry(1) is False


def test_what_is_sent_before_the_first_stream_is_not_lost() -> None:
    one, other = pair()
    one.send({"n": 1})
    Stream(one, other).carry_all()
    assert other.receive() == {"n": 1}


def test_what_was_under_way_when_a_stream_broke_comes_on_the_next() -> None:
    one, other = pair()
    stream = Stream(one, other)
    one.send({"n": 1})
    assert stream.carry(0, lose=True)
    stream.cut()
    stream = Stream(one, other)
    assert stream.carry(0)
    assert other.receive() == {"n": 1}


def test_a_message_that_comes_twice_counts_once() -> None:
    one, other = pair()
    stream = Stream(one, other)
    one.send({"n": 1})
    frame = one._next_frame(stream.numbers[0])
    assert frame is not None
    for _ in range(2):
        other.take(stream.numbers[1], frame)
    assert other.receive() == {"n": 1}
    assert not other._inbox


def test_what_a_peer_has_of_another_process_counts_for_nothing_here() -> None:
    one, other = pair()
    one.send({"n": 1})
    number = one.attach(other.session, bytes(16), 1)
    assert one._next_frame(number) is not None


def test_a_new_process_of_the_peer_is_noticed_before_anything_else_is_said() -> None:
    leader, follower = pair()
    stream = Stream(leader, follower)
    leader.send({"old": 1})
    follower.send({"old": 2})
    stream.carry_all()
    stream.cut()
    again = Link("leader")
    again.send({"new": 1})
    Stream(leader, again).carry_all()
    for action in (lambda: leader.send({"lost": 1}), leader.receive):
        with pytest.raises(PeerRestarted, match="follower has started again"):
            action()
    leader.begin()
    assert leader.receive() == {"new": 1}
    assert again._next_frame(1) is None


def test_what_is_encoded_while_the_peer_starts_again_is_not_for_its_new_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader, follower = pair()
    Stream(leader, follower)
    again, encode = Link("leader"), links.encode

    def slow(told: message.Message, header: bytes) -> bytes:
        Stream(leader, again)
        return encode(told, header=header)

    monkeypatch.setattr(links, "encode", slow)
    with pytest.raises(PeerRestarted):
        leader.send({"old": 1})
    assert not leader._unacknowledged


def test_both_sides_of_a_restart_number_from_one_again() -> None:
    """A process that counted messages of one that is gone must not be believed."""
    leader, follower = pair()
    stream = Stream(leader, follower)
    for n in range(3):
        leader.send({"n": n})
    stream.carry_all()
    stream.cut()
    new = Link("follower")
    new.send({"n": 100})
    welcome_lost = follower.greeting()
    assert welcome_lost[2] == 3
    new.attach(*welcome_lost)  # the follower has not learnt that the leader is another
    stream = Stream(new, follower)
    stream.carry_all()
    with pytest.raises(PeerRestarted):
        follower.receive()
    follower.begin()
    assert follower.receive() == {"n": 100}


def test_arrays_and_their_bytes_are_untouched() -> None:
    one, other = pair()
    array = np.arange(100_000, dtype=np.float32)
    stream = Stream(one, other)
    one.send({"data": array})
    stream.carry_all()
    np.testing.assert_array_equal(other.receive()["data"], array)


def test_a_tensor_is_copied_at_most_twice_on_each_side() -> None:
    """All the memory that sending and receiving a tensor of 8 MB takes, as it is allocated."""
    crossing = Crossing("left", "bank", "lead", ("top",), (2000,), "float32", True, None)
    transfer = Transfer(crossing, 0, gradient=False)
    tensor = torch.randn(1000, 2000, requires_grad=True)
    size = tensor.numel() * 4
    one, other = pair()
    stream = Stream(one, other)
    tracemalloc.start()
    try:
        data = to_wire(tensor)
        one.send({"kind": "tensor", "name": "left", "step": 1, "micro": 0, "data": data})
        sending, _ = tracemalloc.get_traced_memory()
        stream.carry_all()  # the bytes are handed over as they are
        tracemalloc.reset_peak()
        arrived = from_wire(other.receive(), transfer, training=True, step=1, rows=1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert torch.equal(arrived, tensor)
    assert size <= sending < 1.01 * size
    assert peak - sending < 2.01 * size


def test_without_a_stream_patience_ends_with_the_reason() -> None:
    link = Link("bank", patience_s=0.05)
    for why in ("timed out", "Connection refused"):
        link.absent(why)
    with pytest.raises(
        LinkLost, match=r"^bank did not come for 0\.05 seconds: Connection refused$"
    ):
        link.receive()
    other = Link("leader")
    stream = Stream(link, other)
    stream.cut()
    with pytest.raises(LinkLost, match=r"^bank was away for 0\.05 seconds: cut$"):
        link.receive()


def test_with_a_stream_a_silent_peer_is_waited_for_twice_as_long() -> None:
    """It may wait itself for a party that is away; one that hangs ends the run all the same."""
    one, other = Link("b", patience_s=0.2), Link("a", patience_s=0.2)
    Stream(one, other)
    begun = time.monotonic()
    with pytest.raises(
        LinkLost, match=r"^b has sent nothing for 0\.4 seconds and its link is up: what it computes"
    ):
        one.receive()
    assert time.monotonic() - begun >= 0.4
    one, other = Link("b", patience_s=1.0), Link("a", patience_s=60.0)
    stream = Stream(one, other)
    threading.Timer(0.1, lambda: (other.send({"n": 1}), stream.carry_all())).start()
    assert one.receive() == {"n": 1}


def test_who_serves_waits_for_ever() -> None:
    one, other = Link("b", patience_s=math.inf), Link("a")
    stream = Stream(one, other)
    threading.Timer(0.1, lambda: (other.send({"n": 1}), stream.carry_all())).start()
    assert one.receive() == {"n": 1}


def ended(link: Link, why: str = "", during: Callable[[], None] = lambda: None) -> bool:
    """Close a link. Returns False if it waits for longer than any peer needs."""
    closing = threading.Thread(target=link.close, args=(why,), daemon=True)
    closing.start()
    end = time.monotonic() + 20
    while closing.is_alive() and time.monotonic() < end:
        during()
        closing.join(0.001)
    return not closing.is_alive()


def remaining(link: Link, stream: int) -> list[bytes]:
    """Return the frames that a stream has yet to send. It must not wait for more."""
    found = list[bytes]()
    sending = threading.Thread(target=lambda: found.extend(link.frames(stream)), daemon=True)
    sending.start()
    sending.join(5)
    assert not sending.is_alive()
    return found


def test_the_last_word_comes_after_everything_that_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "CLOSE_S", 50.0)
    one, other = pair()
    stream = Stream(one, other)
    one.send({"n": 1})
    assert ended(one, "the part top of a failed\x1b[31m", stream.carry_all)
    assert remaining(one, stream.numbers[0]) == [], "a stream ends with its link"
    assert other.receive() == {"n": 1}
    with pytest.raises(LinkLost, match=r"^leader has ended: 'the part top of a failed\\x1b\[31m'$"):
        other.receive()
    stream.cut()
    assert ended(other), "its peer is gone: nothing to wait for"
    assert ended(Link("bank")), "its peer never came"
    with pytest.raises(LinkLost, match="is closed"):
        one.send({"n": 2})


def test_a_refusal_is_told_and_another_process_may_come() -> None:
    leader, follower = pair()
    stream = Stream(leader, follower)
    refusing = threading.Thread(target=leader.refuse, args=("the jobs differ",))
    refusing.start()
    while refusing.is_alive():
        stream.carry_all()
    with pytest.raises(PeerRefused, match=r"^leader refuses: the jobs differ$"):
        follower.receive()
    with pytest.raises(PeerRefused):
        follower.send({"n": 1})
    assert follower.is_over
    stream.cut()
    another = Link("leader", patience_s=2)
    another.send({"n": 5})
    fresh = threading.Timer(0.05, lambda: Stream(leader, another).carry_all())
    fresh.start()
    leader.await_another()
    assert leader.receive() == {"n": 5}
    assert ended(leader, "all done", Stream(leader, another).carry_all), "and it may end too"
    with pytest.raises(LinkLost, match=r"^leader has ended: all done$"):
        another.receive()
    leader.fail(PeerRefused("it is revoked"))
    with pytest.raises(PeerRefused, match="it is revoked"):  # and no other one is waited for
        leader.await_another()


def test_one_sided_traffic_is_acknowledged_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ACK_BYTES", 1000)
    one, other = pair()
    stream = Stream(one, other)
    frames = 0
    for _ in range(50):
        one.send({"data": np.zeros(100, np.uint8)})
        assert stream.carry(0)
        frames += stream.carry(1)
    assert len(one._unacknowledged) < 10
    assert 3 < frames < 10


def test_the_last_frame_is_acknowledged_though_nothing_else_is_sent() -> None:
    """The peer waits for it. A stream that waits for frames to send must hear of it."""
    one, other = pair()
    stream = Stream(one, other)
    frames = one.frames(stream.numbers[0])
    sending = threading.Thread(
        target=lambda: other.take(stream.numbers[1], next(frames)), daemon=True
    )
    sending.start()
    assert ended(other, during=lambda: stream.carry(1))
    sending.join(5)
    assert not sending.is_alive()
    assert not other._unacknowledged


def test_a_stream_is_not_read_while_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "INBOX_BYTES", 1000)
    monkeypatch.setattr(links, "_PER_MESSAGE_BYTES", 0)
    one, other = pair()
    stream = Stream(one, other)
    for _ in range(40):
        one.send({"data": np.zeros(100, np.uint8)})
    carrying = threading.Thread(target=stream.carry_all)
    carrying.start()
    carrying.join(0.2)
    assert carrying.is_alive()
    assert len(other._inbox) < 12
    for _ in range(32):
        other.receive()
    carrying.join(60)
    assert not carrying.is_alive()
    stream.cut()
    again = Link("follower")
    for _ in range(8):  # what the old process sent and nobody read takes no room
        again.send({"data": np.zeros(100, np.uint8)})
    carrying = threading.Thread(target=Stream(again, other).carry_all, daemon=True)
    carrying.start()
    carrying.join(5)
    assert not carrying.is_alive()


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"short", "too short"),
        (links._HEADER.pack(2, 0, 1) + b"\xfe\x01", "message 2 follows message 0"),
        (links._HEADER.pack(1, 1, 1) + b"\xfe\x01", "1 messages have arrived of 0"),
        (links._HEADER.pack(1, 0, 9), "unknown kind 9"),
    ],
)
def test_frames_that_break_the_rules(frame: bytes, why: str) -> None:
    one, other = pair()
    stream = Stream(one, other)
    with pytest.raises(MessageInvalid, match=why):
        one.take(stream.numbers[0], frame)


def test_a_greeting_that_claims_messages_never_sent() -> None:
    one, other = pair()
    with pytest.raises(MessageInvalid, match="5 messages have arrived of 0"):
        one.attach(other.session, one.session, 5)


def test_what_is_not_a_message_ends_the_link() -> None:
    one, other = pair()
    stream = Stream(one, other)
    one.take(stream.numbers[0], links._HEADER.pack(1, 0, 1) + b"rubbish")
    with pytest.raises(LinkLost, match="follower sent what is not a message"):
        one.receive()


def test_what_no_connection_carries_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "MOST_CARRIED", 100)
    link = Link("leader")
    link.send({"data": bytes(60)})
    with pytest.raises(MessageTooLong, match=r"what leader is due is a message of \d+ bytes"):
        link.send({"data": bytes(100)})


def test_the_time_without_a_stream_adds_up_and_an_old_streams_end_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(links.time, "monotonic", lambda: now)
    one, other = pair()
    now = 107.0  # before the first stream nothing was lost
    stream = Stream(one, other)
    for away in (3.0, 5.5):
        stream.cut()
        now += away
        stream = Stream(one, other)
        now += 20.0
    assert (one.reconnections, one.away_s) == (2, 8.5)
    older, stream = stream, Stream(one, other)
    assert remaining(one, older.numbers[0]) == [], "the older stream waits for nothing"
    older.cut()
    one.send({"n": 1})
    assert stream.carry(0), "the newer stream is still up"


def test_the_first_failure_is_the_one_that_is_raised_and_no_sentence_is_endless() -> None:
    link = Link("bank")
    link.fail(PeerRefused("first"))
    link.fail(LinkLost("second"))
    with pytest.raises(PeerRefused, match="first"):
        link.send({"n": 1})
    assert links._sentence(memoryview(b"a" * 2001)) == "a" * 2000
    assert links._sentence(memoryview(b"a\x1b[2J\nb")) == r"'a\x1b[2J\nb'"


def test_a_peer_that_acknowledges_nothing_ends_the_run_and_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "OUTBOX_BYTES", 50_000)
    one, other = Link("leader", patience_s=0.05), Link("follower")
    stream = Stream(one, other)

    def talk() -> None:
        for _ in range(1000):
            one.send({"data": bytes(5000)})
            other.send({"never": "silent"})
            while stream.carry(1):
                pass
            one.receive()

    with pytest.raises(
        LinkLost, match=r"^leader has acknowledged nothing of 0\.0 GB for 0\.1 seconds and its link"
    ):
        talk()
    assert len(one._unacknowledged) == 17, "a few messages of any size may wait"


def test_who_sends_faster_than_the_peer_reads_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "OUTBOX_BYTES", 50_000)
    monkeypatch.setattr(links, "ACK_BYTES", 1000)
    one, other = pair()
    stream = Stream(one, other)
    over = threading.Event()

    def carry() -> None:
        while not over.wait(0.01):
            stream.carry_all()

    carrying = threading.Thread(target=carry, daemon=True)
    carrying.start()
    for number in range(30):
        one.send({"n": number, "data": bytes(5000)})
        assert one._outbox_bytes < 17 * 6000
    over.set()
    carrying.join()
    stream.carry_all()
    assert [other.receive()["n"] for _ in range(30)] == list(range(30))
    assert one._outbox_bytes < 6000
    assert other._inbox_bytes == 0


def test_who_only_sends_notices_that_the_peer_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "OUTBOX_BYTES", 50_000)
    one, other = pair()
    stream = Stream(one, other)
    one.take(stream.numbers[0], links._HEADER.pack(1, 0, links._END) + b"enough")
    for _ in range(17):
        one.send({"data": bytes(5000)})
    with pytest.raises(LinkLost, match=r"^follower has ended: enough$"):
        one.send({"data": bytes(5000)})


def test_messages_without_bytes_fill_an_inbox_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "INBOX_BYTES", 10_000)
    one, other = pair()
    stream = Stream(one, other)
    frames = [links._HEADER.pack(number, 0, 1) for number in range(1, 1000)]
    taking = threading.Thread(
        target=lambda: [other.take(stream.numbers[1], frame) for frame in frames], daemon=True
    )
    taking.start()
    taking.join(0.1)
    assert taking.is_alive()
    assert len(other._inbox) < 30
    stream.cut()
    taking.join(5)


def test_a_peer_that_comes_and_goes_does_not_make_one_wait_for_ever() -> None:
    """It is never away for 0.3 s, and never silent for 0.6 s on one stream."""
    one, other = Link("bank", patience_s=0.3), Link("lead")
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.wait(0.05):
            stream = Stream(one, other)
            stop.wait(0.05)
            stream.cut()

    flapping = threading.Thread(target=come_and_go, daemon=True)
    flapping.start()
    began = time.monotonic()
    try:
        with pytest.raises(
            LinkLost, match=r"^bank has sent nothing for 1\.2 seconds, in which its link broke and"
        ):
            one.receive()
    finally:
        stop.set()
        flapping.join(5)
    assert time.monotonic() - began >= 1.2


def test_a_refused_process_that_stays_does_not_hold_the_other_side() -> None:
    leader, follower = Link("follower", patience_s=0.15), Link("leader", patience_s=5)
    stream = Stream(leader, follower)
    refusing = threading.Thread(target=leader.refuse, args=("the jobs differ",))
    refusing.start()
    while refusing.is_alive():
        stream.carry_all()
    with pytest.raises(LinkLost, match=r"^follower has not ended its process for 0\.3 seconds"):
        leader.await_another()


def test_nothing_follows_the_last_frame() -> None:
    one, other = pair()
    stream = Stream(one, other)
    for kind in (links._END, links._MESSAGE):
        with one._lock:
            one._hand_over(one._header(one._sent + 1, kind))
    assert stream.carry(0)
    with pytest.raises(MessageInvalid, match=r"^a frame follows the last one$"):
        stream.carry(0)

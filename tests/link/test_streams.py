"""Streams between a leader and its followers: gRPC on loopback with mutual TLS."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from cutter import Cutter
from fedveil.base.message import decode, encode
from fedveil.errors import InvalidValue, LinkLost, PeerRefused, PeerRestarted
from fedveil.link import dialer, listener
from fedveil.link.dialer import Dialer
from fedveil.link.link import Link
from fedveil.link.listener import Listener
from fedveil.link.own_authority import write_certificates
from fedveil.link.streams import Address, Greeting
from fedveil.link.tls import Credentials

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 60.0


class Meeting:
    """A leader that listens, and followers that dial it."""

    def __init__(self, folder: Path, stack: ExitStack, *, insecure: bool = False) -> None:
        self._stack = stack
        self.folder = folder
        self.said: list[str] = []
        self.spoken = threading.Event()
        self.leads = {name: Link(name, patience_s=PATIENCE_S) for name in ("bank", "shop")}
        own = None if insecure else self.credentials("lead")
        self.listener = Listener(LOOPBACK, self.leads, "lead", own, self._say)
        stack.enter_context(self.listener)
        self.port = self.listener.address.port

    def _say(self, text: str) -> None:
        self.said.append(text)
        self.spoken.set()

    def credentials(self, party: str) -> Credentials:
        return Credentials.read(self.folder, party)

    def dial(
        self,
        party: str = "bank",
        *,
        own: Credentials | None = None,
        plaintext: bool = False,
        port: int | None = None,
        leader: str = "lead",
    ) -> Link:
        link = Link(leader, patience_s=PATIENCE_S)
        address = Address("127.0.0.1", port or self.port)
        credentials = None if plaintext else own or self.credentials(party)
        self._stack.enter_context(Dialer(address, link, party, credentials))
        return link


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder / "ours", ["lead", "bank", "shop", "stranger"])
    write_certificates(folder / "theirs", ["lead", "bank"])
    return folder


@pytest.fixture
def meet(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Meeting]]:
    monkeypatch.setattr(dialer, "LONGEST_WAIT_S", 0.2)
    with ExitStack() as stack:
        yield lambda **options: Meeting(certificates / "ours", stack, **options)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that soon says of a handshake that it came to nothing."""
    monkeypatch.setattr(listener, "_HANDSHAKE_S", 0.5)


def refused(link: Link) -> str:
    end = time.monotonic() + PATIENCE_S
    while not link.is_over and time.monotonic() < end:
        assert not link._stream, "it was taken in"
        time.sleep(0.01)
    with pytest.raises(PeerRefused) as error:
        link.receive()
    return str(error.value)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ("failed to connect to all addresses; last error: UNKNOWN: refused", "UNKNOWN: refused"),
        ("Socket closed", "Socket closed"),
        (None, "no reason given"),
    ],
)
def test_why_a_stream_ended_is_its_last_error_or_whatever_is_known(
    details: str | None, reason: str
) -> None:
    error = SimpleNamespace(code=lambda: grpc.StatusCode.UNAVAILABLE, details=lambda: details)
    party: Any = SimpleNamespace(_link=SimpleNamespace(peer="bank"), _address="here:1")
    assert Dialer._why(party, error) == reason


def test_two_followers_and_their_leader_talk_over_mutual_tls(meet: Any) -> None:
    meeting = meet()
    links = {name: meeting.dial(name) for name in ("bank", "shop")}
    data = np.arange(300_000, dtype=np.float32)
    for name, link in links.items():
        link.send({"from": name, "data": data})
    for name, lead in meeting.leads.items():
        arrived = lead.receive()
        assert arrived["from"] == name
        np.testing.assert_array_equal(arrived["data"], data)
        lead.send({"to": name})
        assert links[name].receive() == {"to": name}
    for link in (*links.values(), *meeting.leads.values()):
        link.close()
    assert meeting.said == []


@pytest.mark.parametrize("insecure", [False, True])
def test_a_stream_that_is_cut_again_and_again_loses_and_doubles_nothing(
    meet: Any, insecure: bool
) -> None:
    meeting = meet(insecure=insecure)
    with Cutter(meeting.port) as cutter:
        link = meeting.dial(plaintext=insecure, port=cutter.port)
        lead = meeting.leads["bank"]
        payload = np.zeros(5000, np.uint8)
        for turn in range(15):
            if turn % 3 == 0:
                cutter.cut_after(15_000)  # in the middle of the messages of this turn
            for n in range(4):
                link.send({"n": n, "turn": turn, "data": payload})
                lead.send({"n": n, "turn": turn, "data": payload})
            for n in range(4):
                for end in (link, lead):
                    arrived = end.receive()
                    assert (arrived["turn"], arrived["n"]) == (turn, n)
        cuts = cutter.cuts
        assert cuts == 5
        assert 1 <= link.reconnections <= cuts + 1
        closing = threading.Thread(target=lead.close)
        closing.start()
        link.close()
        closing.join()
        with pytest.raises(LinkLost, match="is closed"):
            link.receive()


def test_a_peer_that_vanishes_without_a_word_is_noticed(
    meet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (listener, dialer):
        hurried = [
            (name, value // 50 if name.endswith(("time_ms", "timeout_ms")) else value)
            for name, value in module.OPTIONS
        ]
        monkeypatch.setattr(module, "OPTIONS", hurried)
    meeting = meet()
    with Cutter(meeting.port) as cutter:
        link = meeting.dial(port=cutter.port)
        lead = meeting.leads["bank"]
        link.send({"n": 1})
        assert lead.receive() == {"n": 1}
        cutter.freeze()
        lead.send({"n": 2})
        link.send({"n": 3})
        assert link.receive() == {"n": 2}
        assert lead.receive() == {"n": 3}
        assert link.reconnections >= 1
        assert cutter.cuts == 0


def test_a_follower_may_dial_before_the_leader_listens(meet: Any, certificates: Path) -> None:
    other = meet()
    with Cutter(1) as nowhere:  # nothing listens on port 1
        link = other.dial(port=nowhere.port)
        link.send({"n": 1})
        nowhere._to = other.port
        assert other.leads["bank"].receive() == {"n": 1}


def test_a_new_process_takes_the_place_of_the_old_one(meet: Any) -> None:
    meeting = meet()
    old = meeting.dial()
    old.send({"n": 1})
    assert meeting.leads["bank"].receive() == {"n": 1}
    new = meeting.dial()
    new.send({"n": 2})
    with pytest.raises(PeerRestarted):
        meeting.leads["bank"].receive()
    meeting.leads["bank"].begin()
    assert meeting.leads["bank"].receive() == {"n": 2}
    with pytest.raises(PeerRefused, match=r"^lead refuses: another process of bank has taken its"):
        old.receive()


@pytest.mark.usefixtures("hasty")
def test_a_certificate_of_another_authority(meet: Any, certificates: Path) -> None:
    meeting = meet()
    theirs = Credentials.read(certificates / "theirs", "bank")
    assert refused(meeting.dial(own=theirs)).startswith(
        f"the certificate at 127.0.0.1:{meeting.port} is not of the authority in "
    )
    assert meeting.spoken.wait(PATIENCE_S)
    assert meeting.said[0] == (
        "refused: a connection that showed no certificate of this authority, or broke off"
    )


def test_a_slow_handshake_is_not_spoken_of_until_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, said = [100.0], []
    monkeypatch.setattr(listener, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert listener._GIVEN_UP_S < listener._HANDSHAKE_S
    handshakes = listener._Handshakes(said.append)
    for succeeds in (True, False):
        handshakes.begun()
        now[0] += listener._GIVEN_UP_S
        handshakes._look()
        assert said == [], "it may still be on its way"
        if succeeds:
            handshakes.succeeded()
    now[0] += listener._HANDSHAKE_S
    handshakes._look()
    assert len(said) == 1
    for _ in range(3):  # a stranger beside a follower, which makes two handshakes
        handshakes.begun()
    handshakes.succeeded(2)
    now[0] += listener._HANDSHAKE_S
    handshakes._look()
    handshakes.stop()
    assert len(said) == 2


@pytest.mark.usefixtures("hasty")
def test_a_follower_that_trusts_the_leader_and_is_not_trusted(
    meet: Any, certificates: Path, tmp_path: Path
) -> None:
    meeting = meet()
    theirs = Credentials.read(certificates / "theirs", "bank")
    mixed = dataclasses.replace(theirs, authority=meeting.credentials("bank").authority)
    assert refused(meeting.dial(own=mixed)) == (
        f"lead at 127.0.0.1:{meeting.port} does not accept this party's certificate"
    )
    assert meeting.spoken.wait(PATIENCE_S)


def test_a_certificate_of_a_party_that_is_no_follower(meet: Any) -> None:
    meeting = meet()
    reason = "lead knows no follower with the certificate of stranger; its followers are bank, shop"
    assert refused(meeting.dial("stranger")) == f"lead refuses: {reason}"
    assert meeting.said == [f"refused: {reason}"]


def test_a_follower_that_shows_the_certificate_of_another(meet: Any) -> None:
    meeting = meet()
    reason = "the certificate of shop was shown by 'bank'"
    assert refused(meeting.dial("bank", own=meeting.credentials("shop"))) == (
        f"lead refuses: {reason}"
    )
    assert meeting.said == [f"refused: {reason}"]


def test_a_leader_that_is_not_the_one_of_the_job(meet: Any) -> None:
    meeting = meet()
    assert refused(meeting.dial(leader="boss")) == (
        f"the certificate at 127.0.0.1:{meeting.port} is that of lead, not that of the leader, boss"
    )


def test_another_version_of_the_protocol(meet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = meet()
    monkeypatch.setattr(
        Greeting, "to_bytes", lambda self, kind: encode({"kind": kind, "protocol": 3, "new": True})
    )
    reason = (
        "bank speaks version 3 of the protocol between parties, lead speaks version 2: both need "
        "the same version of fedveil"
    )
    assert refused(meeting.dial()) == f"lead refuses: {reason}"
    assert meeting.said == [f"refused: {reason}"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "welcome"}, "it is not a hello"),
        ({"session": b""}, "its session has 0 bytes"),
        ({"session": bytes(17)}, "its session has 17 bytes"),
        ({"protocol": 0}, "bank speaks version 0 of the protocol"),
        ({"protocol": 1}, "bank speaks version 1 of the protocol"),
        ({"arrived": "1"}, "arrived"),
    ],
)
def test_a_greeting_is_checked(changes: dict[str, Any], why: str) -> None:
    hello = decode(Greeting("bank", bytes(16), b"", 0).to_bytes("hello"))
    assert Greeting.from_bytes(encode(hello), "hello", "bank", "lead").party == "bank"
    with pytest.raises(PeerRefused, match=why):
        Greeting.from_bytes(encode({**hello, **changes}), "hello", "bank", "lead")


@pytest.mark.usefixtures("hasty")
def test_plaintext_to_a_leader_that_speaks_tls(meet: Any) -> None:
    meeting = meet()
    assert refused(meeting.dial(plaintext=True)) == (
        f"what listens at 127.0.0.1:{meeting.port} speaks TLS: --insecure does not, --tls DIR does"
    )
    assert meeting.spoken.wait(PATIENCE_S)


def test_tls_to_a_leader_that_speaks_plaintext(meet: Any) -> None:
    meeting = meet(insecure=True)
    assert refused(meeting.dial()) == (
        f"what listens at 127.0.0.1:{meeting.port} does not speak TLS"
    )


def test_plaintext_stays_on_loopback_addresses() -> None:
    link = Link("lead")
    outside = Address.parse("--connect", "192.0.2.1:5000")
    with pytest.raises(InvalidValue, match=r"--connect = 192\.0\.2\.1:5000 is not a loopback"):
        Dialer(outside, link, "bank", None)
    with pytest.raises(InvalidValue, match=r"--listen = 0\.0\.0\.0:0 is not a loopback"):
        Listener(Address("0.0.0.0", 0), {"bank": Link("bank")}, "lead", None, print)
    for elsewhere in ("10.0.0.7:1", "localhost.example:1", "lead:1", "[fe80::1]:1"):
        assert not Address.parse("--connect", elsewhere).is_loopback
    for loopback in ("127.0.0.1:1", "[::1]:1", "localhost:1"):
        assert Address.parse("--listen", loopback).is_loopback
        assert str(Address.parse("--listen", loopback)) == loopback


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidValue, match="is not HOST:PORT"):
        Address.parse("--listen", text)


def test_two_leaders_cannot_have_one_port(meet: Any) -> None:
    meeting = meet()
    taken = Address("127.0.0.1", meeting.port)
    with pytest.raises(LinkLost, match=f"nobody can listen on 127.0.0.1:{meeting.port}"):
        Listener(taken, {"bank": Link("bank")}, "lead", meeting.credentials("lead"), print)


@pytest.mark.parametrize("size", [64 << 10, 1 << 20, 5 << 20])
def test_what_a_large_tensor_costs_on_the_wire(meet: Any, size: int) -> None:
    """At most 1.01 of its raw bytes, TLS, HTTP/2 and the link's own words included."""
    meeting = meet()
    with Cutter(meeting.port) as cutter:
        link = meeting.dial(port=cutter.port)
        lead = meeting.leads["bank"]
        link.send({"n": 0})
        lead.receive()
        lead.send({"n": 0})
        link.receive()
        before, times = cutter.carried, 6
        data = np.random.default_rng(0).standard_normal(size // 4).astype(np.float32)
        for _ in range(times):
            for one, other in ((link, lead), (lead, link)):
                one.send({"kind": "tensor", "name": "x", "step": 1, "micro": 0, "data": data})
                other.receive()
        assert cutter.carried - before <= 1.01 * 2 * times * data.nbytes

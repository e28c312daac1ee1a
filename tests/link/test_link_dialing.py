"""When a follower dials again, how long it waits, and which refusals are final."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from fedveil.errors import FedveilError, InvalidValue, LinkLost, PeerRefused
from fedveil.link import dialer, listener
from fedveil.link.dialer import Dialer
from fedveil.link.link import Link
from fedveil.link.streams import Address

REVOKED = PeerRefused("it is revoked")


class Waits:
    """An event that is set after some waits, whose times it keeps."""

    def __init__(self, most: int) -> None:
        self.most, self.times = most, list[float]()

    def is_set(self) -> bool:
        return len(self.times) == self.most

    def wait(self, seconds: float) -> None:
        self.times.append(seconds)


def test_the_pauses_double_up_to_a_second_and_begin_anew_after_a_stream() -> None:
    dials = iter([False] * 6 + [True, False, False])
    party: Any = SimpleNamespace(
        _stopped=Waits(9), _link=Link("lead"), _dial=lambda: next(dials), _verdicts=["old"]
    )
    Dialer._keep(party)
    assert party._stopped.times == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.1, 0.2, 0.4]
    assert party._verdicts == []


def test_three_equal_refusals_in_a_row_are_final() -> None:
    party: Any = SimpleNamespace(_stopped=threading.Event(), _link=Link("lead"), _verdicts=[])
    one, other = PeerRefused("one"), PeerRefused("other")
    refusals: list[FedveilError | None] = [one, one, other, one, one, None, other, other]
    for wrong in refusals:
        Dialer._consider(party, wrong)
        assert not party._link.is_over
    Dialer._consider(party, other)
    with pytest.raises(PeerRefused, match=r"^other$"):
        party._link.receive()


@pytest.mark.parametrize(
    ("error", "considered", "absent"),
    [
        (OSError(111, "Connection refused"), [None], ["Connection refused"]),
        (OSError("timed out"), [None], ["timed out"]),
        (REVOKED, [REVOKED], []),
    ],
)
def test_why_no_stream_opened_is_kept_or_considered(
    error: Exception, considered: list[Any], absent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leader_certificate(*given: object) -> bytes:
        raise error

    monkeypatch.setattr(dialer, "leader_certificate", leader_certificate)
    seen, kept = list[Any](), list[str]()
    party: Any = SimpleNamespace(
        _credentials=object(), _address="here:1", _consider=seen.append,
        _link=SimpleNamespace(peer="lead", absent=kept.append),
    )  # fmt: skip
    assert Dialer._dial(party) is False
    assert (seen, kept) == (considered, absent)


@pytest.mark.parametrize(
    ("succeeded", "reported"),
    [([], [20, 30, 35]), ([5], [30, 35]), ([5, 12], [35]), ([22], [20, 35]), ([5, 12, 16], [])],
)
def test_a_later_handshake_is_given_its_own_time(
    succeeded: list[float], reported: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handshakes begin at 0, 10 and 15 s, and each success is that of the oldest open one."""
    now, said, looks = [0.0], list[float](), list[tuple[float, Callable[[], None]]]()

    def timer(seconds: float, look: Callable[[], None]) -> Any:
        return SimpleNamespace(start=lambda: looks.append((now[0] + seconds, look)))

    def wait_until(time: float) -> None:
        while looks and looks[0][0] <= time:
            now[0], look = looks.pop(0)
            look()
        now[0] = time

    monkeypatch.setattr(listener, "time", SimpleNamespace(monotonic=lambda: 1000 + now[0]))
    locks = SimpleNamespace(Lock=threading.Lock, Timer=timer)
    monkeypatch.setattr(listener, "threading", locks)
    handshakes = listener._Handshakes(lambda text: said.append(now[0]))
    steps = [(time, handshakes.begun) for time in (0, 10, 15)]
    steps += [(time, handshakes.succeeded) for time in succeeded]
    for time, step in sorted(steps, key=lambda each: each[0]):
        wait_until(time)
        step()
    wait_until(100)
    assert said == reported
    handshakes.begun()
    wait_until(200)
    assert said == [*reported, 120]


class Call:
    """A call to a leader that nobody answers."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self.frames = frames

    def __next__(self) -> bytes:
        raise grpc.RpcError

    def cancel(self) -> None: ...


def test_a_stream_that_never_opened_leaves_its_reason_and_sends_nothing_more() -> None:
    party: Any = SimpleNamespace(
        _link=Link("lead", patience_s=0.01), _party="bank", _stopped=threading.Event(),
        _why=lambda error: "no route to host",
    )  # fmt: skip
    party._frames = lambda attached: Dialer._frames(party, attached)
    channel = SimpleNamespace(stream_stream=lambda path: Call)
    assert Dialer._stream(party, channel) is False
    sent = list[bytes]()
    sending = threading.Thread(target=lambda: sent.extend(party._call.frames), daemon=True)
    sending.start()
    sending.join(5)
    assert not sending.is_alive()
    assert len(sent) == 1, "the greeting"
    with pytest.raises(LinkLost, match=r"did not come for 0\.01 seconds: no route to host$"):
        party._link.receive()


class Unavailable(grpc.RpcError):
    """The error of a call to a leader that is restarting."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the leader restarts"


class EndedCall(Call):
    def __next__(self) -> bytes:
        raise Unavailable


@pytest.mark.parametrize("temporary", [OSError("timed out"), None])
def test_a_temporary_failure_between_equal_refusals_starts_their_count_anew(
    temporary: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is unreachable, or it passes the check, and then no stream opens."""
    script = [REVOKED, REVOKED, temporary, REVOKED, temporary, REVOKED, REVOKED, REVOKED, REVOKED]
    ahead = iter(script)

    def leader_certificate(*given: object) -> bytes:
        if (error := next(ahead)) is not None:
            raise error
        return b""

    channel = SimpleNamespace(stream_stream=lambda path: EndedCall)
    monkeypatch.setattr(dialer, "leader_certificate", leader_certificate)
    monkeypatch.setattr(dialer, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(Dialer, "_channel", lambda self, pem: nullcontext(channel))
    own: Any = SimpleNamespace(check_usage=lambda listens: None)
    link = Link("lead", patience_s=60.0)
    with (
        Dialer(Address("here", 1), link, "bank", own),
        pytest.raises(PeerRefused, match=r"^it is revoked$"),
    ):
        link.receive()
    assert list(ahead) == [REVOKED]


BROKEN_PROXY = "http://user:s3cret/word@proxy.example:3128"
NO_PROXY = "the environment variable grpc_proxy is no URL of a proxy: "


@pytest.mark.parametrize("is_secure", [True, False])
def test_a_malformed_proxy_is_refused_before_anything_is_dialled(
    is_secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --insecure too, where gRPC would read the proxy first."""
    monkeypatch.setenv("grpc_proxy", BROKEN_PROXY)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    own: Any = SimpleNamespace(check_usage=lambda listens: None) if is_secure else None
    with pytest.raises(InvalidValue, match=f"^{NO_PROXY}") as error:
        Dialer(Address("127.0.0.1", 1), Link("lead"), "bank", own)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("is_secure", [True, False])
def test_a_proxy_that_becomes_malformed_ends_the_link_with_its_sentence(
    is_secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by a party's own code, in the process of the link."""
    for name in ("no_grpc_proxy", "no_proxy", "grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    channel = SimpleNamespace(stream_stream=lambda path: EndedCall)
    monkeypatch.setattr(Dialer, "_channel", lambda self, pem: nullcontext(channel))
    monkeypatch.setattr(dialer, "FIRST_WAIT_S", 0.0)
    context = SimpleNamespace(set_alpn_protocols=lambda names: None)
    own: Any = SimpleNamespace(check_usage=lambda listens: None, client_context=lambda: context)
    link = Link("lead", patience_s=60.0)
    dialling = Dialer(Address("127.0.0.1", 1), link, "bank", own if is_secure else None)
    monkeypatch.setenv("grpc_proxy", BROKEN_PROXY)
    with dialling, pytest.raises(InvalidValue, match=f"^{NO_PROXY}") as error:
        link.receive()
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "what listens at here:1 is no leader of fedveil"),
        (grpc.StatusCode.FAILED_PRECONDITION, "lead refuses: no"),
        (grpc.StatusCode.UNAVAILABLE, None),
    ],
)
def test_some_ends_of_a_stream_are_final(code: grpc.StatusCode, why: str | None) -> None:
    party: Any = SimpleNamespace(_link=Link("lead"), _address="here:1")
    error = SimpleNamespace(code=lambda: code, details=lambda: "no")
    assert Dialer._why(party, error) == "no"
    assert party._link.is_over == (why is not None)
    if why is not None:
        with pytest.raises(PeerRefused, match=f"^{why}$"):
            party._link.receive()

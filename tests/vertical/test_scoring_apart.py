"""Scoring between parties that are linked: a session, a follower that restarts, and rights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from fedveil.errors import PeerRefused, PeerRestarted
from fedveil.link.channel import Receive
from fedveil.link.link import Link
from fedveil.link.own_authority import write_certificates
from fedveil.link.streams import Address
from fedveil.link.tls import Credentials
from fedveil.vertical.remote.sessions import Meeting
from fedveil.vertical.scoring import sources
from fedveil.vertical.scoring.scorer import Scorer
from fedveil.vertical.scoring.sources import Apart, follow
from scoring_parts import together, trained


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveil.link.dialer.LONGEST_WAIT_S", 0.2)


def meeting(port: int, own: Credentials | None, listening: Any = print) -> Meeting:
    return Meeting(
        Address("127.0.0.1", port), own, 60.0, report=lambda text: None, listening=listening
    )


def scorer(folder: Path, party: str, stack: ExitStack) -> Scorer:
    path = folder / "run" / party / "bundle"
    return Scorer(path, str(folder / f"new-{party}.csv"), stack)


class Follower:
    """The bank, in a thread for each of its processes."""

    def __init__(self, folder: Path, own: Credentials | None) -> None:
        self._folder, self._own = folder, own
        self.ends: list[BaseException | None] = []
        self.threads: list[threading.Thread] = []

    def start(self, port: int, after: Callable[[Scorer], None] = lambda scorer: None) -> None:
        def run() -> None:
            try:
                with ExitStack() as stack:
                    bank = scorer(self._folder, "bank", stack)
                    after(bank)
                    follow(bank, meeting(port, self._own))
                self.ends.append(None)
            except BaseException as error:
                self.ends.append(error)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()


#: What a follower has before its session.
PARTY: dict[str, Any] = {
    "split": SimpleNamespace(leader="lead", followers=("bank",)), "name": "bank",
    "ids": range(3), "most_ids": 7,
}  # fmt: skip


class Killed(Exception):
    """The end of a process in the middle of a request."""


class silent_if_killed:
    """Replaces `closing`, except that a party that is killed says nothing."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._links = list(links)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *_: object) -> None:
        for link in self._links:
            link._ending = link._ending or kind is Killed
            link.close()


def test_a_session_gives_the_scores_of_one_process_and_survives_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "closing", silent_if_killed)
    folder, keys = trained(tmp_path), tmp_path / "keys"
    write_certificates(keys, ["lead", "bank"])
    own = {name: Credentials.read(keys, name, ["lead", "bank"]) for name in ("lead", "bank")}
    with ExitStack() as other:
        source = together(trained(tmp_path / "b"), other)
        expected = source.scores(source.common[:9]).outputs
    bank = Follower(folder, own["bank"])

    def dies(one: Scorer) -> None:
        looks, honest = [0], one._look

        def look(positions: Any) -> Any:
            looks[0] += 1
            if looks[0] == 2:
                raise Killed
            return honest(positions)

        one._look = look  # type: ignore[method-assign]

    def again() -> None:
        """Start the bank without a row that was scored before, so that the others move up."""
        bank.threads[0].join(60)
        file = folder / "new-bank.csv"
        gone = f"c{1000 + source.common[0]},"
        lines = [line for line in file.read_text().splitlines(True) if not line.startswith(gone)]
        file.write_text("".join(lines))
        bank.start(port[0])

    port: list[int] = []

    def listening(address: Address) -> None:
        port.append(address.port)
        bank.start(address.port, dies)
        threading.Thread(target=again, daemon=True).start()

    with ExitStack() as stack:
        lead = scorer(folder, "lead", stack)
        apart = Apart(lead, meeting(0, own["lead"], listening), stack)
        assert np.array_equal(apart.common, source.common)
        first = apart.scores(apart.common[:4])
        second = apart.scores(apart.common[4:9])
    for thread in bank.threads:
        thread.join(60)
    assert np.array_equal(np.concatenate([first.outputs, second.outputs]), expected)
    assert isinstance(bank.ends[0], Killed)
    assert np.array_equal(apart.common, source.common[1:])
    assert bank.ends[1] is None


def test_a_leader_without_the_right_learns_nothing(tmp_path: Path) -> None:
    folder, keys = trained(tmp_path), tmp_path / "keys"
    write_certificates(keys, ["lead", "bank"])
    (keys / "bank" / "tls.yaml").write_text(yaml.safe_dump({"roles": {"lead": ["train"]}}), "utf-8")
    own = Credentials.read(keys, "bank", ["lead", "bank"])
    with ExitStack() as stack, pytest.raises(PeerRefused, match="lead may not predict with bank"):
        follow(scorer(folder, "bank", stack), meeting(1, own))


def test_a_follower_saves_its_account_however_a_session_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[str] = []

    def lost(*given: object) -> None:
        raise Killed

    link = SimpleNamespace(peer="lead", begin=print, send=print, close=lambda reason: None)
    monkeypatch.setattr(sources, "Link", lambda *given, **named: link)
    monkeypatch.setattr(sources, "Dialer", lambda *given: nullcontext())
    monkeypatch.setattr(sources, "drive", lost)
    party: Any = SimpleNamespace(
        **PARTY, use=print, keep_account=lambda: kept.append("kept"),
    )  # fmt: skip
    with pytest.raises(Killed):
        follow(party, meeting(1, None))
    assert kept == ["kept"]


def test_a_follower_answers_the_first_message_of_an_attempt_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first: dict[str, Any] = {"kind": "begin", "attempt": 2}
    steps = iter([np.arange(2), "requests", PeerRestarted("lead is a new process"), Killed()])
    begun: list[Any] = []

    def drive(exchange: object, links: Any) -> Any:
        step = next(steps)
        if isinstance(step, BaseException):
            raise step
        return links["lead"].receive() if isinstance(step, str) else step

    link = SimpleNamespace(
        peer="lead",
        begin=print,
        send=print,
        close=lambda reason: None,
        receive=lambda *given: first,
    )
    monkeypatch.setattr(sources, "Link", lambda *given, **named: link)
    monkeypatch.setattr(sources, "Dialer", lambda *given: nullcontext())
    monkeypatch.setattr(sources, "drive", drive)
    monkeypatch.setattr(sources.row_alignment, "follow", lambda scorer, begin: begun.append(begin))
    party: Any = SimpleNamespace(**PARTY, use=list, keep_account=list, answer=list)
    with pytest.raises(Killed):
        follow(party, meeting(1, None))
    assert begun == [None, first, None]


def test_a_follower_aligns_again_if_another_one_ends_the_first_alignment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader begins again, for example because another follower has the wrong bundle."""
    messages = [{"kind": "begin", "attempt": 1}, {"kind": "begin", "attempt": 2}]
    begun: list[Any] = []

    def receive(deadline: Any = None) -> Any:
        if not messages:
            raise Killed
        return messages.pop(0)

    def aligning(scorer: Any, begin: Any) -> Any:
        message = begin or (yield Receive("lead"))
        begun.append(message["attempt"])
        return (yield Receive("lead"))

    link = SimpleNamespace(peer="lead", begin=print, send=print, close=print, receive=receive)
    monkeypatch.setattr(sources, "Link", lambda *given, **named: link)
    monkeypatch.setattr(sources, "Dialer", lambda *given: nullcontext())
    monkeypatch.setattr(sources.row_alignment, "follow", aligning)
    party: Any = SimpleNamespace(**PARTY, use=list, keep_account=list, answer=list)
    with pytest.raises(Killed):
        follow(party, meeting(1, None))
    assert begun == [1, 2]


def test_a_party_waits_as_long_as_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[str, float]] = []

    def link(peer: str, *, patience_s: float = 600.0) -> Link:
        waits.append((peer, patience_s))
        raise Killed

    monkeypatch.setattr(sources, "Link", link)
    where = replace(meeting(0, None), patience_s=7.5)
    with ExitStack() as stack:
        folder = trained(tmp_path)
        for begin in (
            lambda: Apart(scorer(folder, "lead", stack), where, stack),
            lambda: follow(scorer(folder, "bank", stack), where),
        ):
            with pytest.raises(Killed):
                begin()
    assert waits == [("bank", 7.5), ("lead", 7.5)]

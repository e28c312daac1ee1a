"""Every vector of a text counts, whichever session sent it and however the session ended."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import Message
from fedveil.entropy import Secure, Seeded
from fedveil.errors import ExchangeError, PeerRestarted
from fedveil.language import generation
from fedveil.language.generation import Request
from fedveil.language.text import ByteTokenizer
from fedveil.language.text_account import SentVectors, figures
from fedveil.link.channel import Exchange, Receive, Send, drive_together
from fedveil.record.run_folder import RunFolder
from fedveil.tasks.pangu import Pangu
from fedveil.vertical.party import Party
from fedveil.vertical.split import EmbeddingPrivacy
from small_pangu import parties, small_settings


def apart(leader: Party, most: float | None, events: list[str], folder: Path) -> Any:
    """Return a run of a leader on its own machine, with a limit, a log and a folder."""
    job = SimpleNamespace(privacy=SimpleNamespace(max_epsilon=most))
    task = Pangu(small_settings(), seed=5)
    setting = SimpleNamespace(job=job, task=task, entropy=Secure(), folder=RunFolder(folder, None))  # type: ignore[arg-type]
    return SimpleNamespace(party=leader, setting=setting, log=SimpleNamespace(event=events.append))


def test_between_machines_a_text_has_the_jobs_limit_too(tmp_path: Path) -> None:
    """And a request that states nothing else asks for 100 tokens at temperature 0.8."""
    leader, cloud = parties(privacy=EmbeddingPrivacy(5.0))
    run = apart(leader, 2.5 * 32 * 7, [], tmp_path)
    wanted = Request.seeded(b"abcd", seed=3)
    assert (wanted.tokens, wanted.temperature) == (100, 0.8)
    sides = {
        "leader": generation.leading(wanted)(run),
        "cloud": generation.assist(cloud, Seeded(1)),
    }
    found = drive_together(sides)["leader"]
    assert found.sent.vectors == 7
    assert "above privacy.max_epsilon = 560" in found.stopped


def broken_off(side: Exchange[Any], after: int) -> int:
    """Play the leader's side until it has sent `after` tensors. Returns the vectors in them."""
    vectors = sent = 0
    for request in iter(lambda: side.send(None), None):
        if isinstance(request, Send):
            vectors += int(request.message.get("length", 0))
            sent += request.message["kind"] == "tensor"
        if sent == after:
            with pytest.raises(PeerRestarted):
                side.throw(PeerRestarted("the cloud has started again"))
            return vectors
    raise AssertionError("it ended by itself")


def test_what_broken_sessions_sent_counts_too(tmp_path: Path) -> None:
    """Each attempt has other noise: a follower that restarts again and again averages it away."""
    leader, cloud = parties(privacy=EmbeddingPrivacy(5.0))
    events: list[str] = []
    run = apart(leader, 2.5 * 32 * 13, events, tmp_path)
    side = generation.leading(Request.seeded(b"abcde", seed=3))
    assert [broken_off(side(run), 1) for _ in range(2)] == [5, 5]
    assert events[-1].endswith("for the whole text, 10 vectors of embedding")
    third = drive_together({"leader": side(run), "cloud": generation.assist(cloud, Secure())})
    found = third["leader"]
    assert (found.text, found.sent.vectors) == (b"", 10)
    assert "above privacy.max_epsilon = 1040" in found.stopped
    run = apart(leader, 2.5 * 32 * 17, events, tmp_path)
    fourth = drive_together({"leader": side(run), "cloud": generation.assist(cloud, Secure())})
    found = fourth["leader"]
    assert (len(found.text), found.sent.vectors, found.sent.times) == (3, 17, 3)
    lines = figures(leader.split, found.sent)
    assert [line.epsilon for line in lines] == [2.5, 2.5 * 32 * 3, 2.5 * 32 * 17]
    assert events[-3:] == [str(line) for line in lines]


def test_a_text_is_charged_before_it_is_sent_and_nothing_sent_costs_nothing(tmp_path: Path) -> None:
    leader, _ = parties(privacy=EmbeddingPrivacy(5.0))
    events: list[str] = []
    side = generation.leading(Request.seeded(b"abcde", seed=3))(
        apart(leader, None, events, tmp_path)
    )
    next(side)
    side.close()
    assert events[-1].endswith("for the whole text, 5 vectors of embedding")
    assert figures(leader.split, SentVectors()) == []


def test_a_killed_process_has_charged_on_disk_what_it_has_sent(tmp_path: Path) -> None:
    """The disk is copied at each message: a process that is killed then leaves these files."""
    leader, cloud = parties(privacy=EmbeddingPrivacy(5.0))
    folder, events = tmp_path / "run", list[str]()
    folder.mkdir()
    side = generation.leading(Request.seeded(b"abcde", 3, seed=3))(apart(leader, None, [], folder))
    copies: list[tuple[int, Path]] = []

    def watched() -> Exchange[Any]:
        sent, said = 0, None
        while True:
            try:
                request = side.send(said)
            except StopIteration as end:
                return end.value
            if isinstance(request, Send):
                sent += int(request.message.get("length", 0))
                copy = shutil.copytree(folder, tmp_path / f"copy {len(copies)}")
                copies.append((sent, copy))
            said = yield request

    found = drive_together({"leader": watched(), "cloud": generation.assist(cloud, Secure())})
    assert list(folder.iterdir()) == []
    vectors = [sent for sent, _ in copies]
    assert vectors[:2] == [5, 5]
    assert vectors[-1] == found["leader"].sent.vectors > 5
    for sent, copy in copies:
        events.clear()
        later = generation.leading(Request.seeded(b"a", 1))(apart(leader, None, events, copy))
        next(later)
        lines = figures(leader.split, SentVectors(sent, 1))
        assert events == [f"an earlier text, whose process was killed: {line}" for line in lines]
        later.close()
        assert events[-1].endswith("for the whole text, 1 vectors of embedding")
        assert list(copy.iterdir()) == []


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_scores_that_are_no_numbers_end_the_text(temperature: float) -> None:
    """Every value that the cloud sends is finite, and their products are not."""
    leader, _ = parties()
    request = Request.seeded(b"ab", 5, temperature, 1)
    side = generation.write(
        leader, Seeded(1), ByteTokenizer(), request, None, lambda piece: None, SentVectors()
    )
    data = np.full((1, 1, 32), 3e38, np.float32)
    data[..., ::2] = -3e38
    answer = {"kind": "tensor", "name": "backbone.test", "step": 1, "micro": 0, "data": data}
    with pytest.raises(ExchangeError, match="NaN or infinity, computed from backbone of cloud"):
        lying_follower(side, answer)


def lying_follower(side: Exchange[Any], answer: Message) -> None:
    said: Message | None = None
    while True:
        request = side.send(said)
        said = answer if isinstance(request, Receive) else None

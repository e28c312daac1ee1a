"""Every vector of a text counts, whichever session sent it and however the session ended."""

from __future__ import annotations

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
from fedveil.tasks.pangu import Pangu
from fedveil.vertical.party import Party
from fedveil.vertical.split import EmbeddingPrivacy
from small_pangu import parties, small_settings


def apart(leader: Party, most: float | None, events: list[str]) -> Any:
    """Return a run of a leader on its own machine, with a limit and a log."""
    job = SimpleNamespace(privacy=SimpleNamespace(max_epsilon=most))
    task = Pangu(small_settings(), seed=5)
    setting = SimpleNamespace(job=job, task=task, entropy=Secure())
    return SimpleNamespace(party=leader, setting=setting, log=SimpleNamespace(event=events.append))


def test_between_machines_a_text_has_the_jobs_limit_too() -> None:
    """And a request that states nothing else asks for 100 tokens at temperature 0.8."""
    leader, cloud = parties(privacy=EmbeddingPrivacy(5.0))
    run = apart(leader, 2.5 * 32 * 7, [])
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


def test_what_broken_sessions_sent_counts_too() -> None:
    """Each attempt has other noise: a follower that restarts again and again averages it away."""
    leader, cloud = parties(privacy=EmbeddingPrivacy(5.0))
    events: list[str] = []
    run = apart(leader, 2.5 * 32 * 13, events)
    side = generation.leading(Request.seeded(b"abcde", seed=3))
    assert [broken_off(side(run), 1) for _ in range(2)] == [5, 5]
    assert events[-1].endswith("for the whole text, 10 vectors of embedding")
    third = drive_together({"leader": side(run), "cloud": generation.assist(cloud, Secure())})
    found = third["leader"]
    assert (found.text, found.sent.vectors) == (b"", 10)
    assert "above privacy.max_epsilon = 1040" in found.stopped
    run = apart(leader, 2.5 * 32 * 17, events)
    fourth = drive_together({"leader": side(run), "cloud": generation.assist(cloud, Secure())})
    found = fourth["leader"]
    assert (len(found.text), found.sent.vectors, found.sent.times) == (3, 17, 3)
    lines = figures(leader.split, found.sent)
    assert [line.epsilon for line in lines] == [2.5, 2.5 * 32 * 3, 2.5 * 32 * 17]
    assert events[-3:] == [str(line) for line in lines]


def test_a_text_is_charged_before_it_is_sent_and_nothing_sent_costs_nothing() -> None:
    leader, _ = parties(privacy=EmbeddingPrivacy(5.0))
    events: list[str] = []
    side = generation.leading(Request.seeded(b"abcde", seed=3))(apart(leader, None, events))
    next(side)
    side.close()
    assert events[-1].endswith("for the whole text, 5 vectors of embedding")
    assert figures(leader.split, SentVectors()) == []


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

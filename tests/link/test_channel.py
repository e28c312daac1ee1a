"""How exchanges are driven: by turns in one process, or one party over its channels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import vertical_parts
from fedveil.base.message import Message
from fedveil.errors import ExchangeError, FedveilError, LinkLost, PeerRefused
from fedveil.link.channel import Exchange
from fedveil.vertical import Batch, Party, Receive, Send, drive, drive_together


def parties() -> dict[str, Party]:
    task = vertical_parts.Bottoms()
    split = task.split_model()
    return {
        name: Party(name, split, loss=task.loss if name == "lead" else None, in_flight=2)
        for name in split.parties
    }


def batches() -> dict[str, Batch]:
    x, y = vertical_parts.Bottoms().whole("test")
    rows = np.arange(20)
    return {
        "lead": Batch(rows, {}, y),
        "bank": Batch(rows, {"x": x[:, :3]}),
        "shop": Batch(rows, {"x": x[:, 3:]}),
    }


def noted(exchange: Exchange[object], note: Callable[[object, Message | None], None]):
    """Run `exchange`, and call `note` with every request and its answer."""
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield request
        note(request, answer)


class Replay:
    """A channel to a peer that says what it said before."""

    peer = "lead"

    def __init__(self, told: list[Message], error: Exception | None = None) -> None:
        self.told = told
        self.error = error
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def receive(self) -> Message:
        if not self.told and self.error is not None:
            raise self.error
        return self.told.pop(0)

    def close(self) -> None: ...


def recorded() -> tuple[list[Message], dict[str, object], dict[str, Party]]:
    """Return what the bank receives in a step, each party's result, and the parties."""
    told: list[Message] = []

    def note(request: object, answer: Message | None) -> None:
        if answer is not None:
            told.append(answer)

    there, held = parties(), batches()
    steps: dict[str, Exchange[object]] = {n: p.step(1, held[n]) for n, p in there.items()}
    results = drive_together({**steps, "bank": noted(steps["bank"], note)})
    return told, results, there


def test_a_party_alone_does_what_it_does_among_the_others() -> None:
    told, results, there = recorded()
    alone, channel = parties()["bank"], Replay(told)
    result = drive(alone.step(1, batches()["bank"]), {"lead": channel})  # type: ignore[dict-item]
    assert result == results["bank"]
    assert [message["kind"] for message in channel.sent] == ["tensor", "tensor", "ready"]
    one, other = alone.state(), there["bank"].state()
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("heard", [0, 1, 2])
def test_what_a_channel_raises_leaves_the_party_as_it_was(heard: int) -> None:
    told, _, _ = recorded()
    alone = parties()["bank"]
    before = {name: tensor.clone() for name, tensor in alone.state().items()}
    channel = Replay(told[:heard], PeerRefused("lead has another job"))
    with pytest.raises(PeerRefused, match="lead has another job"):
        drive(alone.step(1, batches()["bank"]), {"lead": channel})  # type: ignore[dict-item]
    assert all(torch.equal(alone.state()[name], before[name]) for name in before)


def test_an_error_comes_out_though_nobody_hears_of_it() -> None:
    told, _, _ = recorded()

    class Deaf(Replay):
        def send(self, message: Message) -> None:
            if message["kind"] == "abort":
                raise LinkLost("lead is away")

    channel = Deaf([{**told[0], "step": 2}])
    with pytest.raises(ExchangeError, match="of step 2 where step 1 was due"):
        drive(parties()["bank"].step(1, batches()["bank"]), {"lead": channel})  # type: ignore[dict-item]


def test_a_party_whose_peer_has_gone_says_so() -> None:
    def silent() -> Exchange[None]:
        yield from ()

    held = batches()
    steps = {name: party.step(1, held[name]) for name, party in parties().items()}
    with pytest.raises(LinkLost, match="waits for bank, which has ended"):
        drive_together({**steps, "bank": silent()})


def test_the_first_error_is_the_one_that_is_raised() -> None:
    def failing(why: str) -> Exchange[None]:
        yield Send("c", {"kind": "tensor"})
        raise ExchangeError(why)

    def reading() -> Exchange[None]:
        yield Receive("a")

    with pytest.raises(ExchangeError, match=r"^first$"):
        drive_together({"a": failing("first"), "b": failing("second"), "c": reading()})


def test_nobody_runs_far_ahead_of_those_who_read() -> None:
    """A follower could send all its looks before the leader reads the first."""
    unread, most = 0, 0

    def sender() -> Exchange[None]:
        nonlocal unread, most
        for _ in range(1000):
            unread += 1
            most = max(most, unread)
            yield Send("b", {"kind": "tensor"})

    def reader() -> Exchange[None]:
        nonlocal unread
        for _ in range(1000):
            yield Receive("a")
            unread -= 1

    drive_together({"a": sender(), "b": reader()})
    assert most <= 66


def test_two_that_are_both_far_ahead_go_on_all_the_same() -> None:
    def party(peer: str) -> Exchange[int]:
        for _ in range(300):
            yield Send(peer, {"kind": "tensor"})
        for _ in range(300):
            yield Receive(peer)
        return 300

    assert drive_together({"a": party("b"), "b": party("a")}) == {"a": 300, "b": 300}


def test_turns_depend_on_requests_alone() -> None:
    def order() -> list[str]:
        seen: list[str] = []
        held = batches()
        drive_together(
            {
                name: noted(party.step(1, held[name]), lambda r, a, n=name: seen.append(n))  # type: ignore[misc]
                for name, party in parties().items()
            }
        )
        return seen

    assert order() == order()


def test_messages_between_machines_are_encoded_and_a_failure_ends_every_party() -> None:
    ended: list[str] = []

    def party(name: str, value: object) -> Exchange[None]:
        peer = "b" if name == "a" else "a"
        try:
            yield Send(peer, {"n": 1})
            yield Receive(peer)
            yield Send(peer, {"value": value})  # type: ignore[dict-item]
            yield Receive("nobody")
        finally:
            ended.append(name)

    for encoded, why in ((True, "'value' is a list"), (False, "waits for nobody")):
        exchanges = {name: party(name, [1]) for name in "ab"}
        with pytest.raises(FedveilError, match=why):
            drive_together(exchanges, encoded=encoded)
        assert sorted(ended) == ["a", "b"]
        ended.clear()

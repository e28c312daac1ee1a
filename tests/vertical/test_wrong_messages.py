"""A message that is not due, at any place of a step or evaluation, ends it, and nothing is applied.

A step of three parties is played once and its messages are recorded. Then each party plays alone:
instead of each message that it waits for, it gets every other one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import Message
from fedveil.entropy import Seeded
from fedveil.errors import ExchangeError
from fedveil.link.channel import Exchange, Receive, Send, drive_together
from fedveil.vertical import step as step_module
from fedveil.vertical.party import Party
from fedveil.vertical.step import Batch
from vertical_parts import Bottoms, UShape

ROWS, IN_FLIGHT, STEP = 7, 3, 5
Heard = dict[str, list[tuple[str, Message]]]
#: Messages of the handshake or of a session's end, which are never due in a step.
ELSEWHERE: list[Message] = [
    {"kind": "begin", "attempt": 1},
    {"kind": "apply", "attempt": 1},
    {"kind": "blinded"},
    {"kind": "agreed", "step": STEP},
    {"kind": "done", "step": STEP},
    {"kind": "farewell"},
    {"kind": "extend", "step": STEP, "start": 0, "length": 1},
    {},
]


def party_of(task: Bottoms, name: str) -> Party:
    loss = task.loss if name == task.leader else None
    return Party(name, task.split_model(), loss=loss, in_flight=IN_FLIGHT, entropy=Seeded(1))


def parties_of(task: Bottoms) -> dict[str, Party]:
    return {name: party_of(task, name) for name in (task.leader, *task.followers)}


def batch_of(task: Bottoms, party: str) -> Batch:
    x, y = task.whole("train")
    positions = np.arange(ROWS)
    if party == task.leader and isinstance(task, UShape):
        return Batch(positions, {"x": x[:ROWS]}, y[:ROWS])
    if party == task.leader:
        return Batch(positions, {}, y[:ROWS])
    half = x[:ROWS, :3] if party == "bank" else x[:ROWS, 3:]
    return Batch(positions, {} if isinstance(task, UShape) else {"x": half})


def exchange_of(party: Party, task: Bottoms, training: bool) -> Exchange[Any]:
    batch = batch_of(task, party.name)
    return party.step(STEP, batch) if training else party.look(STEP, batch)


def listened(name: str, exchange: Exchange[Any], heard: Heard) -> Exchange[Any]:
    """Play a party's side and record the messages that it receives."""
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield request
        if isinstance(request, Receive):
            heard[name].append((request.peer, answer))


def messages(task: Bottoms, training: bool) -> Heard:
    heard: Heard = {name: [] for name in parties_of(task)}
    drive_together(
        {
            name: listened(name, exchange_of(party, task, training), heard)
            for name, party in parties_of(task).items()
        }
    )
    return heard


def wrong_ones(heard: Heard, due: Message) -> Iterator[Message]:
    """Yield every message of the step that differs from the due one, and those from elsewhere."""
    pool = [message for received in heard.values() for _, message in received]
    yield from (message for message in pool if not alike(message, due))
    yield from ELSEWHERE
    yield {**due, "step": STEP + 1}
    yield {**due, "more": 1}
    yield from ({**due, name: np.arange(2)} for name in due if name != "data")


def alike(one: Message, other: Message) -> bool:
    """Return True if a receiver cannot tell the two apart: same head, shape, and type."""
    return {k: v for k, v in one.items() if k not in ("data", "loss")} == {
        k: v for k, v in other.items() if k not in ("data", "loss")
    } and ("loss" in one) == ("loss" in other)


def state_of(party: Party) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in party.state().items()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [Bottoms, UShape])
def test_a_message_that_is_not_due_ends_it(kind: type[Bottoms], training: bool) -> None:
    task = kind()
    heard = messages(task, training)
    tried = 0
    for name, received in heard.items():
        for place, (_, due) in enumerate(received):
            for wrong in wrong_ones(heard, due):
                tried += 1
                party = party_of(task, name)
                before = state_of(party)
                with pytest.raises(ExchangeError):
                    play(exchange_of(party, task, training), received, place, wrong)
                assert state_of(party) == before, (name, place, wrong)
    assert tried > (250 if training else 50)


def play(
    exchange: Exchange[Any], received: list[tuple[str, Message]], place: int, wrong: Message
) -> None:
    """Give a party the messages that it received, but at `place` the wrong one."""
    answer, at = None, 0
    while True:
        request = exchange.send(answer)
        answer = None
        if isinstance(request, Send):
            continue
        answer = wrong if at == place else received[at][1]
        at += 1


def test_the_messages_are_those_of_a_step() -> None:
    heard = messages(Bottoms(), training=True)
    kinds = {str(message["kind"]) for received in heard.values() for _, message in received}
    assert kinds == {"tensor", "ready", "commit"}


def test_a_party_has_waited_for_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    task, ticks = Bottoms(), itertools.count()
    received = messages(task, training=True)["lead"]
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr(step_module, "time", clock)
    party, replies = party_of(task, "lead"), iter(received)
    exchange, answer = exchange_of(party, task, training=True), None
    with suppress(StopIteration):
        while True:
            request = exchange.send(answer)
            answer = next(replies)[1] if isinstance(request, Receive) else None
    assert next(replies, None) is None
    assert party.waited_s == len(received) >= 2 * IN_FLIGHT  # each takes one tick

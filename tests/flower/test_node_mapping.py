"""The mapping from nodes to clients: a node's introduction is bounded, and so is the work on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedveil.base.message import MAGIC, encode
from fedveil.federated.job import Job
from fedveil.flower.job import node_mapping
from fedveil.flower.job.node_mapping import Members
from fedveil.flower.records import encoded_records


class Introductions:
    """A grid whose nodes only answer the question who they are."""

    def __init__(self, words: dict[int, bytes]) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.words = words
        self._asked: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.words)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            name = f"message of {message.metadata.dst_node_id}"
            message.metadata.__dict__["_message_id"] = name
            self._asked[name] = message
        return list(self._asked)

    def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
        asked = [self._asked.pop(name) for name in names]
        return [
            Message(encoded_records(self.words[m.metadata.dst_node_id]), reply_to=m) for m in asked
        ]


def met(words: dict[int, bytes], clients: int) -> tuple[Members, list[str]]:
    events: list[str] = []
    job = Job(clients={"number": clients})
    grid: Any = Introductions(words)
    return Members(grid, job, events.append), events


def test_an_introduction_of_any_length_is_one_short_line() -> None:
    words = {9: encode({"client": 2}), 7: encode({"client": 1, "more": bytes(1000)})}
    twice = encode({"\n" * 110: 1})
    words[8] = twice + twice.removeprefix(MAGIC)
    here, events = met(words, 3)
    here.look()
    assert here.node_of == {2: 9}
    events.sort()
    assert events[1] == (
        "node 7 does not say which client it is: the message has 1019 bytes, "
        "but at most 256 are allowed here"
    )
    said = events[2].removeprefix("node 8 does not say which client it is: ")
    assert said.startswith("the field '\\n\\n")
    assert said.endswith("'... (110 characters) is repeated or out of order")
    assert said.isprintable()
    assert len(said) <= 200


def test_clients_of_a_node_are_named_by_their_ranges() -> None:
    words = {
        9: encode({"client": np.array([6, 0, 1, 2, 4], np.int64)}), 7: encode({"client": 3}),
        8: encode({"client": np.array([5, 7], np.int64)}),
        6: encode({"client": np.array([0, 1, 2, 3, 4, 5], np.int64)}),
    }  # fmt: skip
    events: list[str] = []
    job = Job(clients={"number": 7}, deployment={"clients_per_node": 5})
    grid: Any = Introductions(words)
    here = Members(grid, job, events.append)
    here.look()
    assert here.node_of == {**dict.fromkeys((0, 1, 2, 4, 6), 9), 3: 7}
    del words[9], words[7]
    here.look()
    assert here.node_of == {}
    assert sorted(events) == [
        "client 3 is gone", "client 3 is here", "clients 0-2, 4 and 6 are gone",
        "clients 0-2, 4 and 6 are here",
        "node 6 does not say which client it is: it names 6 clients, and "
        "deployment.clients_per_node = 5",
        "node 8 does not say which client it is: client = 7 is outside [0, 7)",
    ]  # fmt: skip


def test_a_node_tells_the_examples_of_all_its_clients() -> None:
    clients = np.arange(40)
    sizes = {"examples": 5 + clients, "client": clients}
    grid: Any = Introductions({9: encode(sizes), 7: encode({"client": 41, "examples": 3})})
    deployment = {"clients_per_node": 40, "reveal": ["examples"]}
    events: list[str] = []
    here = Members(grid, Job(clients={"number": 42}, deployment=deployment), events.append)
    here.look()
    assert here.node_of == {**dict.fromkeys(range(40), 9), 41: 7}
    assert events == [
        "client 41 is here, with 3 examples", "clients 0-39 are here, with 980 examples",
    ]  # fmt: skip


def test_a_number_of_examples_below_zero_is_refused_and_a_large_one_is_said_as_it_is() -> None:
    most, clients = (1 << 63) - 1, np.arange(2)
    negative, large = np.array([7, -3]), np.array([most, 2])
    grid: Any = Introductions(
        {
            6: encode({"client": 4, "examples": -1}),
            7: encode({"client": 2 + clients, "examples": negative}),
            8: encode({"client": clients, "examples": large}),
        }
    )
    deployment = {"clients_per_node": 2, "reveal": ["examples"]}
    events: list[str] = []
    here = Members(grid, Job(clients={"number": 5}, deployment=deployment), events.append)
    here.look()
    assert here.node_of == {0: 8, 1: 8}
    assert sorted(events) == [
        f"clients 0-1 are here, with {most + 2} examples",
        "node 6 does not say which client it is: examples = -1 is below 0",
        "node 7 does not say which client it is: examples = -3 is below 0",
    ]


def test_a_node_that_is_doubted_is_asked_at_once() -> None:
    grid = Introductions({9: encode({"client": 2})})
    here = Members(grid, Job(clients={"number": 3}), [].append)  # type: ignore[arg-type]
    here.look()
    here.doubt(2)
    assert here.node_of == {}
    grid.words[9] = encode({"client": 1})
    here.look()
    assert here.node_of == {1: 9}


def test_a_node_keeps_the_clients_that_another_does_not_claim() -> None:
    grid: Any = Introductions({9: encode({"client": np.array([0, 1], np.int64)})})
    job, events = Job(clients={"number": 3}, deployment={"clients_per_node": 2}), list[str]()
    here = Members(grid, job, events.append)
    here.look()
    grid.words[7] = encode({"client": 1})
    here.look()
    assert here.node_of == {0: 9, 1: 7}
    assert events[-1] == "node 7 says that it is client 1, as node 9 has said"
    grid.words[8] = encode({"client": 0})
    del grid.words[7]
    here.look()
    assert here.node_of == {0: 8, 1: 9}


def test_two_nodes_that_claim_one_client_do_not_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a copied state folder, each of them would charge only half of the client's reports."""
    now = [1000.0]
    monkeypatch.setattr(node_mapping.time, "monotonic", lambda: now[0])
    grid: Any = Introductions({9: encode({"client": 2})})
    events = list[str]()
    here = Members(grid, Job(clients={"number": 3}), events.append)
    here.look()
    grid.words[7] = encode({"client": 2})
    for _ in range(5):
        here.look()
        assert here.node_of == {2: 7}
        now[0] += 1000
    assert events == ["client 2 is here", "node 7 says that it is client 2, as node 9 has said"]
    del grid.words[7]
    here.look()
    assert here.node_of == {2: 9}
    assert events[2:] == ["client 2 is on node 9 again"]


def test_a_node_that_ended_is_not_waited_for_once_another_has_its_client() -> None:
    """Flower lists a killed node for a while. It cannot answer, so asking it costs a minute."""
    grid: Any = Introductions({9: encode({"client": 2})})
    events = list[str]()
    here = Members(grid, Job(clients={"number": 3}), events.append)
    here.look()
    grid.words |= {9: b"it is dead", 7: encode({"client": 2})}
    here._asked_at[9] -= node_mapping._PATIENCE_S
    for _ in range(2):
        here.look()
    del grid.words[9]
    here.look()
    assert here.node_of == {2: 7}
    assert events == ["client 2 is here", "node 7 says that it is client 2, as node 9 has said"]


def test_a_node_that_returns_with_one_client_is_asked_as_one() -> None:
    grid = Introductions({9: encode({"client": np.array([0, 1], np.int64)})})
    job = Job(clients={"number": 2}, deployment={"clients_per_node": 2})
    here = Members(grid, job, [].append)  # type: ignore[arg-type]
    here.look()
    assert here.shared == {9}
    words = grid.words.pop(9)
    here.look()
    grid.words[9] = encode({"client": 0})
    here.look()
    assert (here.node_of, here.shared) == ({0: 9}, set())
    here.doubt(0)
    grid.words[9] = words
    here.look()
    assert here.shared == {9}


def test_a_node_is_met_on_a_machine_that_has_just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_mapping.time, "monotonic", lambda: 3.0)
    here, _ = met({9: encode({"client": 2})}, 3)
    here.look()
    assert here.node_of == {2: 9}


def steps_to_meet_and_doubt(clients: int) -> int:
    here, _ = met({100 + c: encode({"client": c}) for c in range(clients)}, clients)
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count if frame.f_code.co_filename == node_mapping.__file__ else None

    sys.settrace(count)
    try:
        here.look()
        for client in range(0, clients, 2):
            here.doubt(client)
    finally:
        sys.settrace(None)
    assert here.node_of == {c: 100 + c for c in range(1, clients, 2)}
    return steps


def test_twice_the_clients_take_twice_the_steps() -> None:
    assert steps_to_meet_and_doubt(120) <= 2.1 * steps_to_meet_and_doubt(60)


def test_the_server_waits_for_the_clients_of_a_round_and_for_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, _ = met({7: encode({"client": 0}), 8: encode({"client": 1})}, 5)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        here._grid.words[9 + len(waits)] = encode({"client": 5 - len(waits)})  # type: ignore[attr-defined]

    clock = SimpleNamespace(monotonic=lambda: sum(waits), sleep=sleep)
    monkeypatch.setattr(node_mapping, "time", clock)
    assert here.wait_for([0, 1], 2, 60.0) == 2
    assert waits == []
    assert here.wait_for([0, 3, 4], 3, 60.0) == 3
    assert waits == [1.0, 1.0]
    assert here.wait_for([2, 3], 1, 0.0) == 1
    assert here.wait_for([0, 2], 2, 0.0) == 1
    assert len(waits) == 2

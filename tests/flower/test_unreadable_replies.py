"""Nodes that send bytes of which Flower can make no message, or another client's message id."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.flower.exchange import exchange
from fedveil.flower.records import to_records
from flower_app_parts import FakeGrid, Node, arrays_of, client_app, record_of
from flower_parts import CLIENTS, LocalGrid, app_of, job, same, serve
from forged_replies import FORGERIES, forged

REFUSAL = (
    "a message holds the records 'a reply that cannot be read', a message of fedveil holds "
    "'fedveil' alone"
)
#: Lying node -> its forgery. The nodes of an app in this file have the numbers 1 to 6.
LIARS = dict(zip((1, 2, 4, 5), FORGERIES, strict=True))


class ForgingGrid(LocalGrid):
    """Makes a message of each pulled reply, as Flower's grid does, and has forgotten all of them.

    Clients 0 to 3 forge their replies to a request of the kind `forged`.
    """

    forged = "train."
    silent = False

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        made = []
        for reply in replies:
            client = reply.metadata.src_node_id - 100
            if client >= len(FORGERIES) or self.forged not in reply.metadata.message_type:
                made.append(reply)
            elif not self.silent:
                made.append(forged(reply, FORGERIES[client]))
        return made


def test_a_reply_of_which_flower_makes_no_message_is_refused_and_all_others_count(
    tmp_path: Path,
) -> None:
    app, _ = app_of(tmp_path / "app", job(rounds=1, deployment={"answer_s": 0.3}))
    lied = serve(app, ForgingGrid(app, tmp_path / "one"), tmp_path / "lied")
    record = lied.metrics[0]
    assert record["rejected"] == {REFUSAL: len(FORGERIES)}
    assert record["reports"] == CLIENTS - len(FORGERIES)
    without = ForgingGrid(app, tmp_path / "other")
    without.silent = True
    silent = serve(app, without, tmp_path / "silent")
    dropped = silent.metrics[0]
    assert (dropped["dropped"], dropped["rejected"]) == (len(FORGERIES), {})
    assert same(lied, silent)


def test_a_node_whose_introduction_cannot_be_read_is_no_client(tmp_path: Path) -> None:
    settings = job(rounds=1, deployment={"wait_s": 0.1, "start_clients": 2})
    app, _ = app_of(tmp_path / "app", settings)
    grid = ForgingGrid(app, tmp_path / "state")
    grid.forged = "query.introduce"
    record = serve(app, grid, tmp_path / "run").metrics[0]
    assert record["reports"] == CLIENTS - len(FORGERIES)
    assert (tmp_path / "run" / "events.log").read_text().count(REFUSAL) == len(FORGERIES)


class ForgingNodes(FakeGrid):
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        return [
            forged(reply, LIARS[node]) if (node := reply.metadata.src_node_id) in LIARS else reply
            for reply in replies
        ]


def train(arrays: dict[str, np.ndarray], node: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return {"w": arrays["w"] + np.float32(node)}, {"num-examples": node}


def test_in_somebodys_flower_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    grid = ForgingNodes(Node(n, client_app(train, [ProtectMod()])) for n in range(1, 7))
    keys: dict[str, Any] = {"reconstruct_secrets_threshold": 2, "weighting": "equal"}
    strategy = ProtectedStrategy(FedAvg(), protection="pw_encrypt", **keys)
    result = strategy.start(grid, record_of({"w": np.zeros(9, np.float32)}), 1, timeout=0.3)
    (round,) = strategy.rounds
    assert round.rejected == {REFUSAL: len(LIARS)}
    assert round.reports == 2
    np.testing.assert_allclose(arrays_of(result.arrays)["w"], (3 + 6) / 2, atol=1e-4)


def test_a_reply_with_another_clients_message_id_is_not_that_clients() -> None:
    """Node 2 writes the id of node 1's message in its reply. Node 1 answers later."""
    grid = FakeGrid([])
    messages = [Message(to_records({"asked": n}), n, "query.any") for n in (1, 2)]
    answers: dict[str, list[Message]] = {}

    def push(sent: Iterable[Message]) -> list[str]:
        for number, message in enumerate(sent):
            message.metadata.__dict__["_message_id"] = f"m{number}"
        honest, lie = (Message(to_records({"by": m.metadata.dst_node_id}), reply_to=messages[0])
                       for m in messages)  # fmt: skip
        answers.update({"m0": [honest], "m1": [lie]})
        return ["m0", "m1"]

    def pull(names: Iterable[str]) -> list[Message]:
        return [reply for name in sorted(names, reverse=True) for reply in answers.pop(name, [])]

    grid.push_messages, grid.pull_messages = push, pull  # type: ignore[method-assign,assignment]
    ((at, reply),) = exchange(grid, messages, 0.1)
    assert reply is not None
    assert (at, reply.content) == (0, to_records({"by": 1}))

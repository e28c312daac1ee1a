"""A report that arrives after its round has closed was sent: it is charged but not added."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.serverapp.strategy import FedAvg

from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.flower import exchange as exchanges
from flower_app_parts import FakeGrid, Node, charged_at_last, client_app, record_of
from flower_parts import CLIENTS, LocalGrid, app_of, job, serve

EVERYBODY = set(range(CLIENTS))


class LateGrid(LocalGrid):
    """Delivers client 2's replies after the next round's messages were sent."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        late = {m.metadata.message_id for m in self.sent if m.metadata.dst_node_id == 102}
        training = {m.metadata.message_id for m in self.sent if "train" in m.metadata.message_type}
        return super().pull_messages([i for i in ids if i not in late & training])


def test_a_phase_lasts_from_its_messages_on_whoever_answers_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three replies arrive 4 s apart, on a clock that only waiting advances. Two are in time."""
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(sleep=wait, monotonic=lambda: now[0])
    monkeypatch.setattr(exchanges, "time", clock)

    def sent(number: int) -> Any:
        return SimpleNamespace(metadata=SimpleNamespace(message_id=number, dst_node_id=10 + number))

    def pulled(ids: list[int]) -> list[Any]:
        due = [number for number in ids if now[0] >= 4 * number]
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=n)) for n in due]

    grid: Any = SimpleNamespace(push_messages=lambda all: [1, 2, 3], pull_messages=pulled)
    replies = exchanges.exchange(grid, [sent(number) for number in (1, 2, 3)], 10.0)
    assert [place for place, _ in replies] == [0, 1]
    assert now[0] == pytest.approx(10.0)


def test_in_a_deployed_job(tmp_path: Path, charges: dict[int, set[int]]) -> None:
    settings = job(protection="signds", deployment={"wait_s": 5.0, "answer_s": 0.3})
    app, _ = app_of(tmp_path / "app", settings)
    grid = LateGrid(app, tmp_path / "state")
    run = serve(app, grid, tmp_path / "run")
    assert [(r["reports"], r["dropped"]) for r in run.metrics] == [(CLIENTS - 1, 1)] * 2
    assert [reply.metadata.src_node_id for reply in grid.replies].count(102) == 3  # it has answered
    assert charges == {1: EVERYBODY, 2: EVERYBODY}


def test_a_limit_is_held_against_what_may_have_left(tmp_path: Path) -> None:
    protection = {"name": "signds", "signds": {"sign_eps": 1.0}}
    settings = job(
        rounds=5,
        protection=protection,
        privacy={"max_epsilon": 4.5},
        deployment={"wait_s": 5.0, "answer_s": 0.3},
    )
    app, _ = app_of(tmp_path / "app", settings)
    run = serve(app, LateGrid(app, tmp_path / "state"), tmp_path / "run")
    assert len(run.metrics) == 2  # 2 per report, for selection and bit
    assert run.stopped is not None
    assert "round 3" in run.stopped


def answers_with(grid: LocalGrid, node: int, error: Error) -> None:
    """Make the grid return `error` when the node's client is asked for a report."""
    asked: list[Message] = []

    def tamper(message: Message) -> Message:
        if "train" not in message.metadata.message_type:
            return message
        if message.metadata.dst_node_id == node:
            asked.append(message)
        elif message.metadata.src_node_id == node:
            return Message(error, reply_to=asked[-1])
        return message

    grid.tamper = tamper


@pytest.mark.parametrize(
    ("code", "given"),
    [
        (2, False),  # the client's app raised
        (3, True),  # the message is gone, perhaps after its answer was on its way
        (4, True),  # there was a reply, but it is lost
        (5, True),  # the node is away, perhaps since its reply is with the SuperLink
    ],
)
def test_an_error_of_the_client_tells_that_no_report_has_left_and_one_of_the_superlink_does_not(
    tmp_path: Path, charges: dict[int, set[int]], code: int, given: bool
) -> None:
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection="signds"))
    grid = LocalGrid(app, tmp_path / "state")
    answers_with(grid, 102, Error(code, "as Flower says"))
    record = serve(app, grid, tmp_path / "run").metrics[0]
    assert (record["reports"], record["dropped"]) == (CLIENTS - 1, 1)
    assert charges[1] == (EVERYBODY if given else EVERYBODY - {2})


def test_a_client_that_says_that_it_reports_nothing_is_not_charged(
    tmp_path: Path, charges: dict[int, set[int]]
) -> None:
    app, _ = app_of(tmp_path / "app", job(rounds=1, model="parts:diverging"))
    record = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run").metrics[0]
    withheld = sum(record["withheld"].values())
    assert 0 < withheld < CLIENTS
    assert len(charges[1]) == CLIENTS - withheld


class LateNodes(FakeGrid):
    """Never delivers the first node's reply while the server waits for it."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        late = {
            name
            for name, reply in self._waiting.items()
            if reply.metadata.src_node_id == min(self.nodes)
        }
        return super().pull_messages([i for i in message_ids if i not in late])


def train(arrays: dict[str, np.ndarray], node: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return {name: array + 0.01 for name, array in arrays.items()}, {"num-examples": 5}


def test_in_somebodys_flower_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    grid = LateNodes(Node(n, client_app(train, [ProtectMod()])) for n in range(1, 6))
    strategy = ProtectedStrategy(FedAvg(), protection="rr", eps=4.0, max_epsilon=1e6)
    initial = record_of({"w": np.zeros(40, np.float32)})
    strategy.start(grid, initial, num_rounds=2, timeout=0.3)
    assert [(r.reports, r.dropped) for r in strategy.rounds] == [(4, 1), (4, 1)]
    assert charged_at_last(strategy) == {1, 2, 3, 4, 5}
    assert strategy.ledger.epsilon("run") == 2 * 2 * 4.0 * 40  # in both rounds


def _spoilt(reply: Message) -> Message:
    reply.content["fedveil"]["encoded"] = b"no report"  # type: ignore[index]
    return reply


@pytest.mark.parametrize(
    ("comes", "given"),
    [
        ("nothing", True),
        ("no report", True),
        (4, True),  # there was a reply, but it is lost
        (5, True),  # the node is away, perhaps since its reply is with the SuperLink
        (2, False),  # the client's app raised
    ],
)
def test_a_strategys_ledger_has_what_may_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: str | int, given: bool
) -> None:
    """Checks the ledger at the end of the round, not while the outcome was open."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))

    def errs(message: Message, context: Any) -> Message:
        return Message(Error(int(comes), "as Flower says"), reply_to=message)

    app: Any = errs if isinstance(comes, int) else client_app(train, [ProtectMod()])
    grid = FakeGrid(Node(n, app) for n in (1, 2))
    if comes == "nothing":
        grid.silent = set(grid.nodes)
    if comes == "no report":
        grid.tamper_reply = _spoilt
    strategy = ProtectedStrategy(FedAvg(), protection="rr", eps=1.0)
    strategy.start(grid, record_of({"w": np.zeros(40, np.float32)}), num_rounds=1, timeout=0.2)
    record = strategy.rounds[0]
    assert record.reports == 0
    assert (sum(record.rejected.values()), record.dropped) == {
        "nothing": (0, 2), "no report": (2, 0), 4: (0, 2), 5: (0, 2), 2: (0, 0),
    }[comes]  # fmt: skip
    assert strategy.ledger.epsilon("run") == (2 * 40 if given else 0)

"""A client sends its update once per round, whoever restarts the round and however."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.errors import RunFailed
from folders import records_of

pytest.importorskip("flwr")

from flwr.serverapp.strategy import FedAvg

from fedveil.base.message import decode, encode
from fedveil.entropy import Seeded
from fedveil.errors import AnsweredBefore, DeploymentError
from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.flower.answered_rounds import AnsweredFile
from fedveil.flower.records import COMMON, MESSAGE
from flower_app_parts import FakeGrid, Node, record_of
from flower_app_parts import client_app as own_app
from flower_parts import CLIENTS, LocalGrid, app_of, job, serve

PW = {
    "name": "pw_encrypt",
    "pw_encrypt": {"reconstruct_secrets_threshold": 4, "cipher_time_window": 1000},
}
BEFORE = "the client has already trained in this round"


# --- the file -----------------------------------------------------------------------------------


def test_the_number_only_grows_and_outlives_whoever_wrote_it(tmp_path: Path):
    path = tmp_path / "answered"
    AnsweredFile(path).check(0)
    AnsweredFile(path).note(3)
    for round in (0, 1, 3):
        for refused in (AnsweredFile(path).check, AnsweredFile(path).note):
            with pytest.raises(AnsweredBefore, match="already sent its update for round 3"):
                refused(round)
    AnsweredFile(path).note(7)
    assert path.read_text() == "7"
    path.write_text("5")
    with pytest.raises(DeploymentError, match="answered was edited or replaced by an older copy"):
        AnsweredFile(path).note(8)
    path.unlink()
    with pytest.raises(DeploymentError, match="answered is missing: its seal names another"):
        AnsweredFile(path).check(8)


def granted(path: Path) -> list[int]:
    rounds = []
    for round in range(70):
        try:
            AnsweredFile(path).note(round)
        except AnsweredBefore:
            continue
        rounds.append(round)
    return rounds


def test_of_several_processes_one_answers_a_round(tmp_path: Path):
    with multiprocessing.get_context("fork").Pool(3) as processes:
        answers = processes.map(granted, [tmp_path / "answered"] * 3, chunksize=1)
    assert max(Counter(itertools.chain(*answers)).values()) == 1
    assert (tmp_path / "answered").read_text() == "69"


# --- a deployed job -----------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL."""


def cut_off(grid: LocalGrid, round: int, kind: str, client: int) -> None:
    """End the server when that client's reply of that kind arrives."""

    def tamper(message: Any) -> Any:
        metadata = message.metadata
        reply = metadata.reply_to_message_id and metadata.src_node_id == 100 + client
        if reply and (metadata.group_id, metadata.message_type) == (str(round), kind):
            raise Killed
        return message

    grid.tamper = tamper


def answers(grid: LocalGrid, kind: str) -> int:
    """Return the number of replies of a kind that were not errors."""
    return sum(r.metadata.message_type == kind and not r.has_error() for r in grid.replies)


def test_the_round_again_without_one_client_gives_no_second_sum(tmp_path: Path):
    """The difference of the two sums would be that client's update."""
    settings = job(rounds=1, protection=PW, deployment={"start_clients": CLIENTS - 1})
    app, _ = app_of(tmp_path / "app", settings)
    first = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert first.metrics[0]["reports"] == CLIENTS
    again = LocalGrid(app, tmp_path / "state", range(1, CLIENTS))
    with pytest.raises(RunFailed):
        serve(app, again, tmp_path / "another")
    (record,) = records_of(tmp_path / "another")
    assert (record["reports"], record["withheld"]) == (0, {BEFORE: CLIENTS - 1})
    assert [answers(again, f"train.{p}") for p in ("advertise", "masked", "unmask")] == [0, 0, 0]


def test_a_server_that_was_killed_goes_on_with_those_whose_update_has_not_left(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job(rounds=3, protection=PW))
    grid = LocalGrid(app, tmp_path / "state")
    cut_off(grid, 2, "train.masked", 1)  # 0 and 1 have answered
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    records = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run").metrics
    assert [(r["round"], r["reports"], r["void"]) for r in records] == [
        (1, CLIENTS, None),
        (2, CLIENTS - 2, None),
        (3, CLIENTS, None),
    ]
    assert records[1]["withheld"] == {BEFORE: 2}


def test_a_round_that_is_begun_again_has_nothing_of_the_attempt_before(tmp_path: Path):
    """Every client makes its keys and answers anew."""
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=PW))
    grid = LocalGrid(app, tmp_path / "state")

    def killed(message: Any) -> Any:
        if message.metadata.message_type in ("train.share", "query.forget"):
            raise Killed  # and it tells no client to forget
        return message

    grid.tamper = killed
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    # they are in the middle of a round
    assert all(context.state for context in grid.contexts.values())
    grid.tamper = lambda message: message
    (record,) = serve(app, grid, tmp_path / "run").metrics
    assert (record["reports"], record["withheld"], record["void"]) == (CLIENTS, {}, None)
    said = [r.content[MESSAGE]["encoded"] for r in grid.replies if _advertises(r)]
    assert len({decode(words)["mask_key"] for words in said}) == len(said) == 2 * CLIENTS


def _advertises(reply: Any) -> bool:
    return bool(reply.metadata.message_type == "train.advertise")


def test_where_all_updates_have_left_the_round_is_void_and_the_next_one_is_not(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job(rounds=3, protection=PW))
    grid = LocalGrid(app, tmp_path / "state")
    cut_off(grid, 2, "train.unmask", 0)
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    records = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run").metrics
    assert [r["reports"] for r in records] == [CLIENTS, 0, CLIENTS]
    assert records[1]["void"].endswith("0 clients answered in phase advertise, but 4 are needed")
    assert records[1]["withheld"] == {BEFORE: CLIENTS}
    assert records[1]["loss"] == records[0]["loss"]


@pytest.mark.parametrize("phase", ["share", "unmask"])
def test_the_terms_of_a_round_are_those_of_its_beginning(tmp_path: Path, phase: str):
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=PW))
    grid = LocalGrid(app, tmp_path / "state")

    def tamper(message: Any) -> Any:
        asked = not message.metadata.reply_to_message_id
        if asked and message.metadata.message_type == f"train.{phase}":
            common = message.content[COMMON]
            common["encoded"] = encode({**decode(common["encoded"]), "dimension": 84})
        return message

    grid.tamper = tamper
    with pytest.raises(RunFailed):
        serve(app, grid, tmp_path / "run")
    (record,) = records_of(tmp_path / "run")
    assert record["reports"] == 0
    assert record["withheld"] == {"the client's own log says why": CLIENTS}
    assert answers(grid, f"train.{phase}") == 0


# --- somebody's Flower app ----------------------------------------------------------------------


def test_in_a_flower_app_a_rounds_number_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    numbers, calls = itertools.count(), []
    monkeypatch.setattr("fedveil.flower.app.mod.Secure", lambda: Seeded(3, next(numbers)))

    def train(arrays: Any, node: int) -> Any:
        calls.append(node)
        return {"w": arrays["w"] + np.float32(node)}, {"num-examples": 1}

    app = own_app(train, [ProtectMod()])
    folder = {"state-folder": str(tmp_path / "state")}
    grid = FakeGrid(Node(1 + i, app, node_config=folder) for i in range(6))

    def start() -> Any:
        strategy = ProtectedStrategy(
            FedAvg(), protection="pw_encrypt", reconstruct_secrets_threshold=4
        )
        initial = record_of({"w": np.zeros(5, np.float32)})
        strategy.start(grid, initial, num_rounds=1, timeout=0.2)
        return strategy.rounds[0]

    assert start().reports == 6
    # The SuperNodes are restarted, and the server without one of them.
    del grid.nodes[6]
    for node in grid.nodes.values():
        node.context.state.clear()
    record = start()
    assert record.reports == 0
    ((reason, count),) = record.withheld.items()
    assert (count, len(calls)) == (5, 6)
    assert "already sent its update for round 1" in reason

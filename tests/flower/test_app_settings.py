"""A strategy and its clients with settings, names and counts that are not the usual ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedveil.base.array_digest import digest
from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.flower.app import mod
from fedveil.flower.app.carrier import AppCarrier
from fedveil.flower.app.clear_metrics import Means, usable
from fedveil.flower.app.options import joined
from fedveil.flower.own_file import OwnFile
from fedveil.rounds import outcomes
from flower_app_parts import Arrays, FakeGrid, Node, client_app, record_of

GAUSSIAN = {"protection": "central_gaussian", "clip": 0.1, "noise_multiplier": 2.0}
PW = {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 3}


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


def train(arrays: Arrays, node: int) -> tuple[Arrays, dict[str, Any]]:
    metrics = {"rows": node * node, "loss": 0.5 * node, "num-examples": 100 - node}
    return {"w": arrays["w"] + np.float32(node)}, metrics


def federation(clients: int = 5, train: Any = train, **config: Any) -> FakeGrid:
    app = client_app(train, [ProtectMod()])
    return FakeGrid(Node(n, app, **config) for n in range(1, clients + 1))


def start(strategy: ProtectedStrategy, grid: FakeGrid, rounds: int = 1, *more: Any) -> Any:
    return strategy.start(grid, record_of({"w": np.zeros(20, np.float32)}), rounds, 5, *more)


def test_means_are_weighed_by_the_metric_that_the_strategy_names() -> None:
    reveal = {"fedveil.reveal": "loss, rows"}
    strategy = ProtectedStrategy(
        FedAvg(weighted_by_key="rows"), protection="rr", reveal="loss, rows"
    )
    start(strategy, federation(run_config=reveal))
    rows = [1, 4, 9, 16, 25]
    assert strategy.rounds[0].metrics == {
        "loss": pytest.approx(np.average([0.5, 1.0, 1.5, 2.0, 2.5], weights=rows))
    }


def test_a_client_without_a_figure_hides_nobodys_evaluation() -> None:
    """One reveals only its weight, one an infinite loss, and one answers with an error."""
    reveal = "loss, num-examples"
    grid = federation(run_config={"fedveil.reveal": reveal})

    def odd(reply: Message) -> Message:
        node, kind = reply.metadata.src_node_id, reply.metadata.message_type
        if kind != "evaluate":
            return reply
        if node == 4:
            return Message(Error(7, "why"), reply_to=grid.sent[-1])
        found = {"loss": 0.5 * node, "num-examples": node}
        if node == 2:
            del found["loss"]
        if node == 3:
            found["loss"] = math.inf
        reply.content = RecordDict({"metrics": MetricRecord(found)})
        return reply

    grid.tamper_reply = odd
    result = start(ProtectedStrategy(FedAvg(), protection="rr", reveal=reveal), grid)
    mean = (1 * 0.5 + 5 * 2.5) / 6
    assert result.evaluate_metrics_clientapp[1] == {"loss": pytest.approx(mean)}


def test_a_list_with_one_entry_that_is_not_finite_is_in_no_mean() -> None:
    said = {"n": 3, "each": [1.0, math.nan], "loss": 2.0}
    assert dict(usable(MetricRecord(said), "n")) == {"n": 3, "loss": 2.0}  # type: ignore[arg-type]
    means = Means("n")
    for metrics in (said, {"each": [4.0, 6.0], "loss": 6.0}):  # without a weight it is 1
        means.add(MetricRecord(metrics))  # type: ignore[arg-type]
    assert means.record() == {"loss": 3.0, "each": [4.0, 6.0]}


def test_a_start_hands_on_the_time_and_the_settings_of_training() -> None:
    grid, waited = federation(run_config={"fedveil.reveal": "loss"}), []
    sends = grid.send_and_receive

    def noted(messages: Any, *, timeout: float | None = None) -> Any:
        waited.append(timeout)
        return sends(messages, timeout=timeout)

    grid.send_and_receive = noted  # type: ignore[method-assign]
    strategy = ProtectedStrategy(FedAvg(), protection="rr", reveal="loss")
    start(strategy, grid, 1, ConfigRecord({"lr": 0.25}), ConfigRecord({"depth": 3}))
    assert set(waited) == {5}
    told = {kind: set[str]() for kind in ("train", "evaluate")}
    for message in grid.sent:
        told[message.metadata.message_type].update(message.content["config"])
    assert {"lr"} == told["train"] - {"server-round"}
    assert {"depth"} == told["evaluate"] - {"server-round"}


def test_a_weak_report_is_warned_of_in_the_first_round_of_all_processes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"protection": "rr", "eps": 100.0}
    for process in (1, 2):
        strategy = ProtectedStrategy(FedAvg(), **settings, ledger_file=tmp_path / "ledger")
        with caplog.at_level(logging.WARNING, "flwr"):
            start(strategy, federation(), process)
        assert strategy._number == 2 + 2 * (process - 1)
    said = [record.getMessage() for record in caplog.records]
    assert ["a single report is promised" in line for line in said].count(True) == 1


def test_a_limit_is_held_at_the_delta_of_the_settings() -> None:
    free = ProtectedStrategy(FedAvg(), **GAUSSIAN)
    start(free, federation(), 3)
    limit = free.ledger.epsilon("run", 1e-2) * 1.01
    assert limit < free.ledger.epsilon("run", 1e-5) / 1.3
    strategy = ProtectedStrategy(FedAvg(), **GAUSSIAN, max_epsilon=limit, delta=1e-2)
    start(strategy, federation(), 5)
    assert len(strategy.rounds) == 3


def test_rounds_that_all_clients_refuse_take_nothing_of_a_total() -> None:
    grid = federation(node_config={"fedveil.protection": "oue", "fedveil.eps": 0.5})
    strategy = ProtectedStrategy(FedAvg(), protection="oue", eps=1.0, total_eps=50.0)
    start(strategy, grid, 4)
    assert [sum(record.withheld.values()) for record in strategy.rounds] == [5] * 4
    assert (strategy.stopped, strategy.ledger.epsilon("run")) == (None, 0)


def test_a_client_may_have_one_example_or_a_float_of_them() -> None:
    def counting(arrays: Arrays, node: int) -> tuple[Arrays, dict[str, Any]]:
        return train(arrays, node)[0], {"num-examples": 1 if node < 4 else 6.0}

    strategy = ProtectedStrategy(FedAvg(), **PW)
    result = start(strategy, federation(train=counting))
    assert strategy.rounds[0].reports == 5
    mean = np.average([1, 2, 3, 4, 5], weights=[1, 1, 1, 6, 6])
    np.testing.assert_allclose(result.arrays["w"].numpy(), mean, atol=1e-4)


def carried(content: RecordDict | None = None, error: Error | None = None) -> outcomes.Answer:
    message = Message(RecordDict(), 3, "train")
    message.metadata.__dict__["_message_id"] = "m1"
    reply = Message(error if content is None else content, reply_to=message)  # type: ignore[arg-type]
    carrier = AppCarrier(None, {}, ConfigRecord(), {"loss"}, "report", 1.0)  # type: ignore[arg-type]
    found = carrier._read(3, reply, training=True)
    assert found is not None
    return found


def test_a_reply_with_one_metric_too_many_is_refused_and_an_error_has_a_reason() -> None:
    metrics = MetricRecord({"loss": 1.0, "sick": 4})
    refused = carried(RecordDict({"metrics": MetricRecord({"loss": 1.0})}))
    assert isinstance(refused, outcomes.Refused)
    assert "the reply is no report" in refused.reason
    assert carried(error=Error(7, "")) == outcomes.Failed(3, "error 7")
    report = {"fedveil": ConfigRecord({"encoded": b"x"}), "metrics": metrics}
    refused = carried(RecordDict(report))  # type: ignore[arg-type]
    assert isinstance(refused, outcomes.Refused)
    assert "metrics in clear that were not asked for" in refused.reason


def test_the_files_of_a_client_are_those_of_its_run_number_and_folder(tmp_path: Path) -> None:
    def files(**changes: Any) -> tuple[Path, Path]:
        fields: Mapping[str, Any] = {"run_id": 7, "node_id": 4, "node_config": {}, **changes}
        context: Any = SimpleNamespace(**fields, state=RecordDict())
        return mod._lasting(context, "account"), mod._state_of(context)._key_file

    (tmp_path / "run").mkdir()
    usual = files()
    assert usual == files()
    for change in ({"run_id": 8}, {"node_id": 5}):
        assert not set(files(**change)) & set(usual)
    named = files(node_config={"state-folder": str(tmp_path / "own")})
    assert {path.parent for path in named} == {tmp_path / "own"}
    homes = [path.parent for path in usual]
    assert homes == [tmp_path / "home" / "fedveil", tmp_path / "run" / "fedveil"]


def test_a_seal_tells_files_of_one_name_in_two_folders_apart(tmp_path: Path) -> None:
    files = []
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        files.append(OwnFile(tmp_path / folder / "3-1", tmp_path))
    for number, file in enumerate(files):
        file.write(b"content %d" % number)
    assert [file.read() for file in files] == [b"content 0", b"content 1"]


def test_arrays_are_told_apart_by_name_type_shape_and_content() -> None:
    x = np.arange(6, dtype=np.float32)
    others = [
        {"v": x}, {"w": x.view(np.int32)}, {"w": x.reshape(2, 3)}, {"w": x + 1}, {"w": x, "v": x},
    ]  # fmt: skip
    found = {digest(arrays) for arrays in ({"w": x}, *others)}
    assert len(found) == 1 + len(others)


def test_a_list_in_the_code_may_repeat_the_text_of_a_configuration() -> None:
    found = joined({"fedveil.keep": "head, bias", "lr": 1}, {"keep": ["head", "bias"]})
    assert found == {"keep": ["head", "bias"]}

"""Strategies inside a protected strategy and around it: some work, and the rest are refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from fedveil.base import message
from fedveil.errors import InvalidValue, MessageTooLong
from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.flower.app.wrapped_app import ask_in_time
from fedveil.flower.fixed_time import FixedTime
from flower_app_parts import Arrays, FakeGrid, Node, arrays_of, client_app, record_of

PW = {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 2, "weighting": "equal"}


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def train(arrays: Arrays, node: int) -> tuple[Arrays, dict[str, Any]]:
    return {"w": arrays["w"] + np.float32(4.0)}, {"num-examples": 5, "loss": float(node)}


def federation() -> FakeGrid:
    config = {"fedveil.reveal": "loss"}
    return FakeGrid(Node(n, client_app(train, [ProtectMod()]), config) for n in range(1, 5))


def start(strategy: flower.Strategy, grid: FakeGrid | None = None) -> Any:
    initial = record_of({"w": np.zeros(25, np.float32)})
    return strategy.start(grid or federation(), initial, num_rounds=1, timeout=5)


def norm_of(result: Any) -> float:
    return float(np.linalg.norm(arrays_of(result.arrays)["w"]))


@pytest.mark.parametrize(
    "around",
    [
        lambda inner: flower.DifferentialPrivacyServerSideFixedClipping(inner, 1e-9, 0.1, 4),
        lambda inner: flower.DifferentialPrivacyServerSideAdaptiveClipping(
            inner, 1e-9, 4, initial_clipping_norm=0.1
        ),
        lambda inner: flower.DifferentialPrivacyClientSideFixedClipping(inner, 1e-9, 0.1, 4),
        lambda inner: flower.DifferentialPrivacyClientSideAdaptiveClipping(
            inner, 1e-9, 4, initial_clipping_norm=0.1
        ),
    ],
)
def test_flowers_differential_privacy_around_it_is_refused_before_anything_is_sent(
    around: Callable[[flower.Strategy], flower.Strategy],
) -> None:
    """It would give the update its full norm of 20, although it states a bound of 0.1."""
    grid = federation()
    protected = ProtectedStrategy(flower.FedAvg(), **PW)
    assert norm_of(start(protected)) == pytest.approx(20.0, abs=1e-3)
    for _ in range(2):
        with pytest.raises(InvalidValue, match=r"a strategy stands around ProtectedStrategy and "):
            start(around(protected), grid)
    assert not grid.sent


class Around(flower.Strategy):
    """A strategy that passes everything on, and therefore needs no reply."""

    def __init__(self, inner: flower.Strategy) -> None:
        self.inner = inner

    def configure_train(self, *args: Any) -> Any:
        return self.inner.configure_train(*args)

    def aggregate_train(self, *args: Any) -> Any:
        return self.inner.aggregate_train(*args)

    def configure_evaluate(self, *args: Any) -> Any:
        return self.inner.configure_evaluate(*args)

    def aggregate_evaluate(self, *args: Any) -> Any:
        return self.inner.aggregate_evaluate(*args)

    def summary(self) -> None:
        self.inner.summary()


def test_a_strategy_that_needs_no_reply_may_stand_around_where_that_is_said() -> None:
    with pytest.raises(InvalidValue, match="give it wrapped=True"):
        start(Around(ProtectedStrategy(flower.FedAvg(), **PW)))
    told = ProtectedStrategy(flower.FedAvg(), wrapped=True, **PW)
    assert norm_of(start(Around(told))) == pytest.approx(20.0, abs=1e-3)


def test_after_a_start_that_failed_nothing_else_begins_a_round() -> None:
    strategy = ProtectedStrategy(flower.FedAvg(), **PW)
    with pytest.raises(AttributeError):
        strategy.start(None, record_of({"w": np.zeros(25, np.float32)}), 1)
    with pytest.raises(InvalidValue, match="a strategy stands around ProtectedStrategy"):
        strategy.configure_train(1, record_of({"w": np.zeros(25)}), ConfigRecord(), federation())


def test_a_loop_of_its_own_is_a_class_derived_from_it() -> None:
    class Own(ProtectedStrategy):
        def start(self, grid: Any, initial: Any, *args: Any, **kwargs: Any) -> Any:
            self.configure_train(1, initial, ConfigRecord(), grid)
            return self.aggregate_train(1, [])

    arrays, _ = start(Own(flower.FedAvg(), **PW))
    assert np.linalg.norm(arrays_of(arrays)["w"]) == pytest.approx(20.0, abs=1e-3)


class Median(flower.FedAvg):
    """An aggregation of a user's own, which stores its inputs."""

    given: list[int]

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.given = [*getattr(self, "given", []), len(replies)]
        return super().aggregate_train(server_round, replies)


def test_an_aggregation_of_ones_own_is_refused_unless_it_takes_averages() -> None:
    with pytest.raises(
        InvalidValue, match=r"Median\(...\) has its own aggregate_train, which is given one reply"
    ):
        ProtectedStrategy(Median(), **PW)
    inner = Median()
    start(ProtectedStrategy(inner, takes_averages=True, **PW))
    assert inner.given == [1]


def test_so_is_one_that_is_set_on_a_strategy_of_flowers() -> None:
    inner = flower.FedAdam()
    inner.aggregate_train = Median().aggregate_train
    with pytest.raises(InvalidValue, match=r"FedAdam\(...\) has its own aggregate_train"):
        ProtectedStrategy(inner, **PW)


def test_an_aggregation_of_metrics_of_ones_own_sees_their_means_and_must_be_able_to() -> None:
    def largest(contents: list[Any], weighted_by_key: str) -> MetricRecord:
        return MetricRecord({"loss": max(content["metrics"]["loss"] for content in contents)})

    inner = flower.FedAvg(train_metrics_aggr_fn=largest)
    with pytest.raises(InvalidValue, match="has its own train_metrics_aggr_fn, which is given one"):
        ProtectedStrategy(inner, **PW)
    result = start(ProtectedStrategy(inner, takes_averages=True, reveal="loss", **PW))
    assert result.train_metrics_clientapp[1]["loss"] == 2.5  # the median of 1, 2, 3 and 4


def test_a_class_that_only_chooses_its_clients_needs_to_say_nothing() -> None:
    class Chooses(flower.FedAdagrad):
        def configure_train(self, *args: Any) -> Any:
            return list(super().configure_train(*args))[:3]

    protected = ProtectedStrategy(Chooses(), **PW)
    start(protected)
    assert protected.rounds[0].reports == 3


def test_an_average_does_not_help_what_looks_at_single_updates() -> None:
    with pytest.raises(InvalidValue, match="looks at every client's own reply"):
        ProtectedStrategy(flower.FedMedian(), takes_averages=True, **PW)


def test_a_report_that_no_record_carries_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message, "MOST_CARRIED", 50)
    grid = federation()
    with pytest.raises(MessageTooLong, match=r"a report under protection.name = dp_encrypt"):
        start(ProtectedStrategy(flower.FedAvg(), protection="dp_encrypt"), grid)
    assert not grid.sent


class Sizes(flower.FedAvg):
    """Asks as many clients in each round as it is told."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._sizes = list(sizes)

    def configure_train(self, *args: Any) -> Any:
        return list(super().configure_train(*args))[: self._sizes.pop(0)]


def test_a_round_of_too_few_clients_is_void_once_there_was_a_sum() -> None:
    protected = ProtectedStrategy(Sizes(4, 2, 3), **PW)
    result = protected.start(federation(), record_of({"w": np.zeros(25, np.float32)}), num_rounds=3)
    assert norm_of(result) == pytest.approx(40.0, abs=1e-3)
    assert [(r.clients, r.reports, r.void is None) for r in protected.rounds] == [
        (4, 4, True), (2, 0, False), (3, 3, True),
    ]  # fmt: skip
    said = str(protected.rounds[1].void)
    assert said.startswith("the round is void: reconstruct_secrets_threshold = 2 is outside")


def test_too_few_clients_are_an_error_if_there_was_no_sum_yet() -> None:
    grid = federation()
    grid.silent = set(grid.nodes)
    protected = ProtectedStrategy(Sizes(4, 2), **PW)
    initial = record_of({"w": np.zeros(25, np.float32)})
    with pytest.raises(InvalidValue, match="reconstruct_secrets_threshold = 2 is outside"):
        protected.start(grid, initial, num_rounds=2, timeout=0.05)
    assert [r.reports for r in protected.rounds] == [0]


@pytest.mark.parametrize("lie", [float("nan"), [0.5], [0.5, 1.0]])
def test_an_evaluation_is_of_the_metrics_that_all_give(lie: Any) -> None:
    config = {"fedveil.reveal": "loss, accuracy, num-examples"}
    grid = FakeGrid(Node(n, client_app(train, [ProtectMod()]), config) for n in range(1, 5))

    def lose(reply: Any) -> Any:
        if reply.metadata.message_type == "evaluate" and reply.metadata.src_node_id > 2:
            reply.content["metrics"]["accuracy"] = lie
        return reply

    grid.tamper_reply = lose
    reveal = "loss, accuracy, num-examples"
    result = start(ProtectedStrategy(flower.FedAvg(), reveal=reveal, **PW), grid)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"loss": 0.5}


def test_an_app_in_fixed_time_has_its_state_as_it_left_it() -> None:
    state = RecordDict({"old": ConfigRecord({"n": 1}), "kept": ConfigRecord({"n": 2})})
    context: Any = SimpleNamespace(state=state)

    def app(message: Any, context: Any) -> Any:
        del context.state["old"]
        context.state["new"] = ConfigRecord({"n": 3})
        return SimpleNamespace(has_error=lambda: False, content="content")

    with FixedTime(0.05) as time:
        said: Any = ask_in_time(time, None, context, app)  # type: ignore[arg-type]
    assert (said, sorted(context.state)) == ("content", ["kept", "new"])
    assert context.state is state

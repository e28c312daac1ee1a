"""A report is sent at a fixed time, so it reveals neither how long training took nor if it
raised."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from test_every_client_reports import asked, form, raising, stay

import parts
from fedveil.base.message import decode
from fedveil.engine.job_protection import job_digest
from fedveil.errors import ClientWithheld
from fedveil.federated.job import Job
from fedveil.flower import ProtectedStrategy, ProtectMod, fixed_time
from fedveil.flower.app.clear_metrics import LATE
from fedveil.flower.app.field_names import TIME, WITHHELD
from fedveil.flower.app.mod import _lasting
from fedveil.flower.app.offer import Offer
from fedveil.flower.app.options import parse
from fedveil.flower.app.pins import Pin, answer_after_s
from fedveil.flower.fixed_time import FixedTime
from fedveil.flower.job.client_training import Training
from fedveil.flower.own_account import OwnLedger
from fedveil.flower.records import MESSAGE
from fedveil.flower.sealed_state import StateFolder
from fedveil.privacy.ledger import Ledger
from fedveil.protections.base import TIMING
from flower_app_parts import FakeGrid, Node, client_app, record_of
from flower_parts import LocalGrid, app_of, job, serve

RR = {"name": "rr", "unary": {"eps": 0.1}}


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the sleeping times, on a clock that only sleeping advances."""
    waits: list[float] = []
    clock = SimpleNamespace(sleep=waits.append, monotonic=lambda: sum(waits))
    monkeypatch.setattr(fixed_time, "time", clock)
    return waits


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """Yield an event for which a training waits until the test is over."""
    event = threading.Event()
    yield event
    event.set()


# --- by itself


def test_whatever_is_done_takes_so_long(slept: list[float]) -> None:
    with FixedTime(60.0) as time:
        assert time.trained(lambda: threading.current_thread()) is not threading.main_thread()
        slept.append(20.0)
    assert slept == [20.0, 40.0]


def test_an_error_takes_as_long(slept: list[float]) -> None:
    class Killed(BaseException):
        pass

    def killed() -> None:
        raise Killed

    with pytest.raises(Killed), FixedTime(60.0) as time:
        time.trained(killed)
    assert slept == [60.0]


def test_what_is_not_ready_is_withheld(never: threading.Event) -> None:
    with pytest.raises(ClientWithheld, match=r"not ready within 88% of answer_after_s = 0\.01 s"):
        FixedTime(0.01).__enter__().trained(never.wait)


def test_a_training_that_never_ends_does_not_keep_the_process_alive(slept: list[float]) -> None:
    with FixedTime(60.0) as time:
        assert time.trained(lambda: threading.current_thread().daemon)


def test_the_time_of_a_training_begins_when_the_client_is_asked(
    slept: list[float], never: threading.Event
) -> None:
    """Time that a client used before training is taken off the training's."""
    began = monotonic()
    with FixedTime(20.0) as time:
        slept.append(19.0)
        with pytest.raises(ClientWithheld, match="not ready"):
            time.trained(never.wait)
    assert monotonic() - began < 10
    assert slept == [19.0, 1.0]


def test_without_a_time_it_is_a_call(slept: list[float]) -> None:
    with FixedTime(None) as time:
        assert time.trained(lambda: threading.current_thread()) is threading.main_thread()
    assert slept == []


# --- in a deployed job


def deployed(tmp_path: Path, after_s: float | None, **changes: Any) -> tuple[Any, LocalGrid]:
    waiting = {"answer_s": 100.0, "answer_after_s": after_s}
    settings = job(rounds=1, protection=RR, deployment=waiting, **changes)
    app, _ = app_of(tmp_path / "app", settings)
    grid = LocalGrid(app, tmp_path / "state")
    return serve(app, grid, tmp_path / "run"), grid


def test_every_client_of_a_job_answers_at_its_time(tmp_path: Path, slept: list[float]) -> None:
    """This includes a client whose training raises. Here, all but one are of that kind."""
    run, _ = deployed(tmp_path, 60.0, model="parts:picky")
    assert slept == [60.0] * 6
    assert run.metrics[0]["reports"] == 6
    assert run.ledger.in_clear == ()


def test_a_job_without_a_time_says_that_it_is_told(tmp_path: Path, slept: list[float]) -> None:
    run, _ = deployed(tmp_path, None)
    assert slept == []
    assert run.ledger.in_clear == (TIMING,)
    assert run.metrics[-1]["in_clear"] == [TIMING]


def test_a_training_that_is_too_slow_counts_as_an_update_of_zero(
    tmp_path: Path,
    slept: list[float],
    never: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    train, join = Training.update, fixed_time._Work.join
    stuck: list[threading.Thread] = []

    def slow(self: Training, client: int, *more: Any) -> Any:
        if client == 3:
            stuck.append(threading.current_thread())
            never.wait(20)
        return train(self, client, *more)

    def patient(self: Any, timeout: float | None = None) -> None:
        """Wait until all but the stuck client are ready, however slow this machine is."""
        while self.is_alive() and self not in stuck:
            join(self, 0.01)

    _, usual = deployed(tmp_path / "usual", None)
    monkeypatch.setattr(Training, "update", slow)
    monkeypatch.setattr(fixed_time._Work, "join", patient)
    with caplog.at_level(logging.WARNING, "flwr"):
        run, grid = deployed(tmp_path / "slow", 0.4)
    assert "an update of zero is reported: training was not ready within 88%" in caplog.text
    assert run.metrics[0]["reports"] == 6
    reports = [
        [form(decode(r.content[MESSAGE]["encoded"])) for r in g.replies if "train" in kind(r)]  # type: ignore[arg-type, index]
        for g in (usual, grid)
    ]
    assert reports[0] == reports[1]


@pytest.fixture
def late_job(
    tmp_path: Path, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Job]:
    """Return the app of a job whose server asks for a time that is too short for client 3."""
    train = Training.update

    def slow(self: Training, client: int, *more: Any) -> Any:
        if client == 3:
            slept.append(61.0)
        return train(self, client, *more)

    monkeypatch.setattr(Training, "update", slow)
    waiting = {"answer_s": 100.0, "answer_after_s": 60.0, "repeats": 9}
    return app_of(tmp_path / "app", job(rounds=2, protection=RR, deployment=waiting))


def test_an_answer_of_a_job_that_left_late_is_in_the_clients_account_and_log(
    late_job: tuple[Path, Job], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It left late in two rounds. The log says so once."""
    app, settings = late_job
    with caplog.at_level(logging.WARNING, "flwr"):
        run = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert [record["reports"] for record in run.metrics] == [6, 6]
    folder, digest = StateFolder(tmp_path / "state"), job_digest(settings)
    paths = [folder.file(digest, client, "late") for client in range(6)]
    assert [path.exists() for path in paths] == [client == 3 for client in range(6)]
    assert OwnLedger(paths[3])._read()[1][0].in_clear == (LATE,)
    assert caplog.text.count("answered the server after the fixed time") == 1
    assert "client 3 answered the server after the fixed time" in caplog.text


def test_a_late_answer_begins_no_account_of_reports(
    late_job: tuple[Path, Job], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cost of earlier reports, which no limit counted, is unknown to a later limit."""
    app, _ = late_job
    serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    grid = LocalGrid(app, tmp_path / "state")
    grid.contexts[103].node_config |= {"max-epsilon": 1e9, "seeded": False}
    run = serve(app, grid, tmp_path / "again")
    assert [record["reports"] for record in run.metrics] == [5, 5]
    assert "has given 2 reports of this job without a limit" in caplog.text


@pytest.mark.parametrize("examples", [240, 6])
def test_a_training_whose_time_is_over_ends_before_its_next_batch(
    tmp_path: Path, never: threading.Event, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """It would slow down the next training of the process, which would miss its time as well.

    With 6 examples, each client has one batch in each of its epochs.
    """
    begun: list[threading.Thread] = []
    start, works = fixed_time._Work.__init__, list[threading.Thread]()

    def noted(self: Any, call: Any) -> None:
        works.append(self)
        start(self, call)

    def stuck(self: parts.Slow, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            begun.append(threading.current_thread())
            never.wait(20)
        return self.net(x)

    monkeypatch.setattr(fixed_time._Work, "__init__", noted)
    monkeypatch.setattr(parts.Slow, "forward", stuck)
    monkeypatch.setattr(parts.data, "__defaults__", (examples,))
    training = {"epochs": 3, "batch_size": 10}
    run, _ = deployed(tmp_path, 0.4, model="parts:slow_plain", training=training)
    assert run.metrics[0]["reports"] == len(works) == 6
    never.set()
    for work in works:
        work.join(20)
    assert begun, "a training has reached its first batch"
    assert len(begun) == len(set(begun))


def kind(message: Any) -> str:
    return str(message.metadata.message_type)


# --- in somebody's Flower app


def test_every_client_of_an_app_answers_at_its_time(slept: list[float]) -> None:
    for train in (stay, raising):
        assert not asked(RR, train, answer_after_s=60.0).has_error()
    assert slept == [60.0] * 2


def test_in_a_secure_sum_the_trained_report_alone_waits(
    slept: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages about keys reveal nothing, and training follows the first of them."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    grid = FakeGrid(Node(n, client_app(stay, [ProtectMod()])) for n in range(1, 5))
    strategy = ProtectedStrategy(
        FedAvg(),
        protection="pw_encrypt",
        reconstruct_secrets_threshold=3,
        weighting="equal",
        answer_after_s=60.0,
    )
    waited: list[tuple[bool, int]] = []

    def count(reply: Any) -> Any:
        waited.append((bool(grid.sent[-1].content.array_records), len(slept)))
        return reply

    grid.tamper_reply = count
    strategy.start(grid, record_of({"w": np.zeros(9, np.float32)}), num_rounds=1, timeout=5)
    assert strategy.rounds[0].reports == 4
    assert slept == [60.0] * 4
    assert [n for trains, n in waited if trains] == [1, 2, 3, 4]


def test_an_app_that_is_too_slow_gives_an_update_of_zero_and_no_metric(
    never: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(arrays: dict[str, np.ndarray], node: int) -> Any:
        never.wait(20)
        return stay(arrays, node)

    with caplog.at_level(logging.WARNING, "flwr.fedveil"):
        reply = asked(RR, slow, answer_after_s=0.02, reveal="loss")
    assert "an update of zero is reported: training was not ready" in caplog.text
    usual = asked(RR, stay, reveal="loss")
    assert set(reply.content) == set(usual.content)
    assert np.isnan(reply.content["metrics"]["loss"])  # type: ignore[arg-type, call-overload]


@pytest.mark.parametrize("asks", ["the client", "the server"])
def test_every_client_of_an_app_evaluates_in_its_time(asks: str, slept: list[float]) -> None:
    """It does so even if its evaluation fails. A server asks for the time in each message."""
    own = {"answer_after_s": 60.0} if asks == "the client" else {}
    theirs = {"answer_after_s": 60.0} if asks == "the server" else {}

    seen: list[set[str]] = []

    def spy(message: Any, context: Any, call_next: Any) -> Any:
        seen.append(set(message.content))
        return call_next(message, context)

    def failing(message: Any, context: Any, call_next: Any) -> Any:
        raise ValueError("patient 4711 has no label")

    nodes = [
        Node(n, client_app(stay, [ProtectMod(reveal="loss", **own), spy, *mods]))
        for n, mods in ((1, []), (2, [failing]))
    ]
    grid = FakeGrid(nodes)
    strategy = ProtectedStrategy(FedAvg(), protection="rr", reveal="loss", **theirs)
    arrays = record_of({"w": np.zeros(9, np.float32)})
    messages = list(strategy.configure_evaluate(1, arrays, ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    assert slept == [60.0] * 2
    assert seen == [{"arrays", "config"}] * 2, "the app sees its own records alone"
    assert [set(reply.content["metrics"]) for reply in replies] == [{"loss"}] * 2
    told = [account.in_clear for account in accounts_of(grid)]
    assert told == [("the metric loss (reveal)",)] * 2


def accounts_of(grid: FakeGrid) -> list[Ledger]:
    found = [_lasting(node.context, "account") for node in grid.nodes.values()]
    return [OwnLedger(path)._read()[1][0] for path in found]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_answer_that_left_late_is_in_the_clients_own_account(
    kind: str, slept: list[float]
) -> None:
    """A server can ask for a time that is too short, to learn how long the client takes."""

    def slow(message: Any, context: Any, call_next: Any) -> Any:
        if message.metadata.message_type == kind:
            slept.append(61.0)
        return call_next(message, context)

    own = {"reveal": "loss"} if kind == "evaluate" else {}
    nodes = [
        Node(n, client_app(stay, [ProtectMod(**own), *mods])) for n, mods in ((1, [slow]), (2, []))
    ]
    grid = FakeGrid(nodes)
    strategy = ProtectedStrategy(FedAvg(), protection="rr", answer_after_s=60.0, **own)
    strategy.start(grid, record_of({"w": np.zeros(9, np.float32)}), num_rounds=1)
    late, in_time = ({*account.in_clear} for account in accounts_of(grid))
    assert late - in_time == {LATE}
    assert TIMING not in late


def test_an_evaluation_that_is_too_slow_reveals_nothing(never: threading.Event) -> None:
    def slow(message: Any, context: Any, call_next: Any) -> Any:
        never.wait(20)
        return call_next(message, context)

    mods = [ProtectMod(reveal="loss", answer_after_s=0.02), slow]
    grid = FakeGrid([Node(1, client_app(stay, mods))])
    (reply,) = grid.send_and_receive([Message(RecordDict(), 1, "evaluate")])
    assert np.isnan(reply.content["metrics"]["loss"])  # type: ignore[arg-type, call-overload]


def test_a_time_that_is_none_is_refused() -> None:
    grid = FakeGrid([Node(1, client_app(stay, [ProtectMod(reveal="loss")]))])
    times = [ConfigRecord({"answer_after_s": seconds}) for seconds in (-1.0, 1e300)]
    for time in (*times, ConfigRecord(), MetricRecord()):
        (reply,) = grid.send_and_receive([Message(RecordDict({TIME: time}), 1, "evaluate")])
        assert reply.error.reason == f"{WITHHELD}{TIME} holds no answer_after_s in (0, 1e6]"


def test_what_an_app_keeps_is_taken_over(slept: list[float]) -> None:
    kept: list[set[str]] = []

    def keeps(message: Any, context: Any, call_next: Any) -> Any:
        kept.append(set(context.state))
        context.state = RecordDict({f"mine{len(kept)}": ConfigRecord()})
        return call_next(message, context)

    mods = [ProtectMod(answer_after_s=60.0), keeps]
    grid = FakeGrid([Node(1, client_app(stay, mods))])
    strategy = ProtectedStrategy(
        FedAvg(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1), protection="rr"
    )
    strategy.start(grid, record_of({"w": np.zeros(9, np.float32)}), num_rounds=3)
    assert kept == [set(), {"mine1"}, {"mine2"}]


def test_the_longest_time_that_anybody_asks_for_holds() -> None:
    offers = [
        Offer(parse({"protection": "rr", **t}), "n", 9, 4) for t in ({}, {"answer_after_s": 5})
    ]
    sources = (("ProtectMod", 3.0), ("the run configuration", 8.0))
    pins = [Pin(source, parse({"answer_after_s": seconds})) for source, seconds in sources]
    assert [answer_after_s(offer.options, ()) for offer in offers] == [None, 5.0]
    assert [answer_after_s(offer.options, pins[:1]) for offer in offers] == [3.0, 5.0]
    assert [answer_after_s(offer.options, pins) for offer in offers] == [8.0, 8.0]
    read = [Offer.read(offer.words(), set()) for offer in offers]
    assert [answer_after_s(offer.options, ()) for offer in read] == [None, 5.0]


def test_both_ledgers_of_an_app_say_where_the_time_is_told(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []
    charge = OwnLedger.charge

    def spy(self: OwnLedger, spending: Any, limits: Any, in_clear: Any = ()) -> None:
        told.append(list(in_clear))
        charge(self, spending, limits, in_clear)

    monkeypatch.setattr(OwnLedger, "charge", spy)
    asked(RR, stay)
    asked(RR, stay, answer_after_s=60.0)
    assert told == [[TIMING], []]
    clear = [
        ProtectedStrategy(FedAvg(), **settings).ledger.in_clear
        for settings in (
            {"protection": "rr"},
            {"protection": "rr", "answer_after_s": 9.0},
            {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 3},
        )
    ]
    assert clear[:2] == [(TIMING,), ()]
    assert TIMING not in clear[2]

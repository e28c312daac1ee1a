"""Under a guarantee, an invited client reports whatever its training produced, and is charged.

A server that chooses the weights asks a question: does the client have a certain example? The same
question is put to a client of a simulation, of a deployed job and of a user's own Flower app.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg

import parts
from fedveil.base.example_arrays import items, shape_of
from fedveil.base.message import decode, encode
from fedveil.engine.assembly import ModelShape, make_client_side, make_protection
from fedveil.engine.executors.client_side import ClientsData, Made
from fedveil.errors import DeploymentError
from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.flower.app.offer import Offer
from fedveil.flower.app.options import parse
from fedveil.flower.job import client_training
from fedveil.flower.records import COMMON, MESSAGE, to_records
from fedveil.protections.base import TIMING
from flower_app_parts import RUN, FakeGrid, Node, client_app, record_of
from flower_parts import LocalGrid, app_of, job, serve
from round_parts import server_half

DIMENSION = parts.FEATURES * parts.CLASSES + parts.CLASSES
PROTECTIONS: list[dict[str, Any]] = [
    {"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 0.1}},
    {"name": "signds", "signds": {"sign_eps": 0.1}},
    {"name": "rr", "unary": {"eps": 0.1}},
    {"name": "oue", "unary": {"eps": 0.1, "target": "update"}},
]
ALL = pytest.mark.parametrize("protection", PROTECTIONS, ids=lambda p: p["name"])


def crafted() -> np.ndarray:
    """Return finite weights under which only the marked example overflows."""
    weights = np.zeros((parts.CLASSES, parts.FEATURES), np.float32)
    weights[:, 0] = 3e38
    return np.concatenate([weights.ravel(), np.zeros(parts.CLASSES, np.float32)])


def form(report: Any) -> dict[str, Any]:
    """Return the part of a report that must not depend on the data: all but the private draws."""
    return {
        name: None if name == "indices" else (type(value), np.asarray(value).nbytes)
        for name, value in report.items()
    }


# --- in a simulation ----------------------------------------------------------------------------


def simulated(protection: dict[str, Any], *, marked: bool, model: str = "parts:linear") -> Any:
    settings = job(protection=protection, model=model, clients={"number": 1, "fraction": 1.0})
    mine = parts.one_clients_data(marked=marked)
    x, y = mine["x_train"], mine["y_train"]
    data = ClientsData(x, y, np.arange(len(x)), np.array([0, len(x)]))
    side = make_client_side(settings, ModelShape((parts.FEATURES,), 3), data, crafted())
    made = make_protection(settings, DIMENSION)
    side.open(1)
    opening = server_half(made, [0], crafted(), number=1).opening()
    (answer,) = side.answers({0: opening})
    return answer


@ALL
def test_a_simulated_client_reports_either_way(protection: dict[str, Any]) -> None:
    answers = [simulated(protection, marked=marked) for marked in (False, True)]
    assert all(isinstance(answer, Made) for answer in answers)
    assert form(answers[0].message) == form(answers[1].message)
    assert [a.effort.unusable for a in answers] == [None, "the update is not finite"]
    assert not any(a.effort.raised for a in answers)


def test_the_report_is_the_one_of_an_update_of_zero() -> None:
    """A fixed vector: its draws are those of a client that has not moved."""
    protection = {"name": "dp_encrypt"}
    settings = job(protection=protection, clients={"number": 1, "fraction": 1.0})
    overflowed = simulated(protection, marked=True).message
    from fedveil.engine.assembly import report_entropy
    from round_parts import client_half

    made = make_protection(settings, DIMENSION)
    entropy = report_entropy(settings).stream("report", 1, 0)
    half = client_half(made, 0, crafted(), entropy=entropy, number=1)
    still = half.respond({"round": 1}, np.zeros(DIMENSION, np.float32))
    assert encode(overflowed) == encode(still)


# --- in a deployed job --------------------------------------------------------------------------


def deployed(
    tmp_path: Path, protection: dict[str, Any], data: str, model: str = "parts:linear"
) -> tuple[Any, LocalGrid]:
    """Make a run whose server sends the crafted weights. Client 0 has the data called `data`."""
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=protection, model=model))
    grid = LocalGrid(app, tmp_path / "state")
    for context in grid.contexts.values():
        context.node_config["data"] = "parts:one_clients_data"
    grid.contexts[100].node_config["data"] = data

    def tamper(message: Message) -> Message:
        if not message.metadata.reply_to_message_id and "train" in message.metadata.message_type:
            common = decode(message.content[COMMON]["encoded"])  # type: ignore[arg-type, index]
            changed = encode({**common, "weights": crafted()})
            message.content[COMMON] = ConfigRecord({"encoded": changed})
        return message

    grid.tamper = tamper
    return serve(app, grid, tmp_path / "run"), grid


def first_reply(grid: LocalGrid) -> Message:
    (reply,) = [
        r
        for r in grid.replies
        if r.metadata.src_node_id == 100 and "train" in r.metadata.message_type
    ]
    return reply


@ALL
def test_a_deployed_client_reports_either_way(
    tmp_path: Path, protection: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    forms = []
    for data in ("parts:one_clients_data", "parts:marked_data"):
        with caplog.at_level(logging.WARNING, "flwr"):
            run, grid = deployed(tmp_path / data.replace(":", "-"), protection, data)
        reply = first_reply(grid)
        assert not reply.has_error()
        assert set(reply.content) == {MESSAGE}
        forms.append(form(decode(reply.content[MESSAGE]["encoded"])))  # type: ignore[arg-type, index]
        record = run.metrics[0]
        assert (record["reports"], record["withheld"], record["failed"]) == (6, {}, {})
        assert record["unusable"] == {}  # only the client's own log may say it
        said = "an update of zero is reported: the update is not finite" in caplog.text
        assert said == (data == "parts:marked_data")
        caplog.clear()
    assert forms[0] == forms[1]


@pytest.mark.parametrize(
    ("model", "data", "logged"),
    [
        ("parts:picky", "parts:eager_data", "RuntimeError: these examples are not to my taste"),
        ("parts:linear", "parts:labels_beyond", "this client has the label 3"),
        ("parts:linear", "parts:no_data_today", "SystemExit: not today"),
        ("parts:linear", "parts:nothing_there", "AttributeError|has no function|nothing_there"),
    ],
)
def test_whatever_goes_wrong_with_a_deployed_clients_data_is_in_its_own_log_alone(
    tmp_path: Path, model: str, data: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server also chooses the number of classes: a label beyond it must reveal nothing
    either."""
    with caplog.at_level(logging.WARNING, "flwr"):
        run, grid = deployed(tmp_path, {"name": "rr"}, data, model)
    assert not first_reply(grid).has_error()
    assert run.metrics[0]["reports"] == 6
    assert any(word in caplog.text for word in logged.split("|"))


def test_texts_of_one_length_are_of_the_job_s_shape() -> None:
    texts, pictures = np.arange(12).reshape(4, 3), np.zeros((4, 1, 5, 5))
    for x, shape, fits in (
        (texts, (-1,), True), (texts, (3,), True), (texts, (4,), False), (texts, (-1, 3), False),
        (pictures, (-1, 5, 5), True), (pictures, (1, 5, 4), False),
    ):  # fmt: skip
        data = ClientsData.of_one(2, x, np.zeros(4, np.int64))
        with nullcontext() if fits else pytest.raises(DeploymentError, match=r"have shape"):
            found = client_training._of_shape(data, ModelShape(shape, 3))
            assert shape_of(found) == shape
            assert [item.tolist() for item in items(found)] == x.tolist()


def test_a_deployed_client_is_charged_before_its_examples_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    read = client_training.client_data

    def watched(job: Any, client: int, *more: Any) -> ClientsData:
        (account,) = (tmp_path / "state").glob(f"*-{client}.reports")
        seen.append(account.read_text())
        return read(job, client, *more)

    monkeypatch.setattr(client_training, "client_data", watched)
    deployed(tmp_path, {"name": "signds"}, "parts:marked_data")
    assert seen == ["1"] * 6


@pytest.mark.parametrize("wrong", ["nan", "label", "huge", "none", "damaged"])
def test_a_deployed_client_s_invalid_record_is_in_its_own_log_alone(
    tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `privacy.unit: example` the client's other examples still count."""
    changes = {"nan": (float("nan"), 0), "label": (1.0, 3), "huge": (1e300, 1), "none": (None, 2)}

    def records() -> dict[str, Any]:
        data = parts.one_clients_data()
        x, y = [list(map(float, row)) for row in data["x_train"]], list(data["y_train"])
        if wrong == "damaged":
            x[17] = x[17][:-1]
        else:
            x[17][2], y[17] = changes[wrong]
        return {"x_train": x, "y_train": y, "x_test": None, "y_test": "never looked at"}

    monkeypatch.setattr(parts, "records", records, raising=False)
    settings = job(
        rounds=1,
        model="parts:linear",
        training={"sampling_rate": 1.0, "batch_size": 4, "lr": 2.0},
        protection={"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 1.0, "dp_delta": 1e-6}},
        privacy={"unit": "example"},
        deployment={"reveal": ["examples"]},
    )
    app, _ = app_of(tmp_path / "app", settings)
    grid = LocalGrid(app, tmp_path / "state")
    grid.contexts[100].node_config["data"] = "parts:records"
    with caplog.at_level(logging.WARNING, "flwr"):
        run = serve(app, grid, tmp_path / "run")
    assert not first_reply(grid).has_error()
    assert run.metrics[0]["reports"] == 6
    assert "1 of 40 training examples have no effect, starting with example 17" in caplog.text
    assert "an update of zero is reported" not in caplog.text


# --- in somebody's Flower app -------------------------------------------------------------------


def options_of(protection: dict[str, Any]) -> dict[str, Any]:
    (block,) = [value for value in protection.values() if isinstance(value, dict)] or [{}]
    return {"protection": protection["name"], **block}


Training = Callable[[dict[str, np.ndarray], int], tuple[dict[str, np.ndarray], dict[str, Any]]]


def asked(protection: dict[str, Any], train: Training, /, **pins: Any) -> Message:
    """Return a client's reply to a crafted training message."""
    reveal = {"reveal": pins["reveal"]} if "reveal" in pins else {}
    offer = Offer(parse(options_of(protection) | reveal), "num-examples", DIMENSION, 4)
    state = offer.protection(RUN).initial_state()
    context = server_half(offer.protection(RUN), [1], crafted(), state=state, number=1)
    records = to_records(context.opening())
    records["fedveil.offer"] = to_records(offer.words())[MESSAGE]
    records["arrays"] = record_of({"w": crafted()})
    records["config"] = ConfigRecord({"server-round": 1})
    grid = FakeGrid([Node(1, client_app(train, [ProtectMod(**pins)]))])
    return grid.send_and_receive([Message(records, 1, "train")])[0]


def overflow(arrays: dict[str, np.ndarray], node: int) -> Any:
    return {"w": arrays["w"] * np.float32(4)}, {"num-examples": 5, "loss": float("nan")}


def stay(arrays: dict[str, np.ndarray], node: int) -> Any:
    return {"w": arrays["w"] + np.float32(0.1)}, {"num-examples": 5, "loss": 0.5}


def raising(arrays: dict[str, np.ndarray], node: int) -> Any:
    raise ValueError("patient 4711 has no label")


def leaving(arrays: dict[str, np.ndarray], node: int) -> Any:
    sys.exit("patient 4711 has no label")


def shorter(arrays: dict[str, np.ndarray], node: int) -> Any:
    return {"w": arrays["w"][1:]}, {}


def another(arrays: dict[str, np.ndarray], node: int) -> Any:
    return {"v": arrays["w"]}, {}


@ALL
@pytest.mark.parametrize("train", [overflow, raising, leaving, shorter, another])
@pytest.mark.parametrize("reveal", [{}, {"reveal": "loss"}], ids=["", "reveal"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_client_of_an_app_reports_either_way(
    protection: dict[str, Any],
    train: Training,
    reveal: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    usual = asked(protection, stay, **reveal)
    with caplog.at_level(logging.WARNING, "flwr.fedveil"):
        reply = asked(protection, train, **reveal)
    assert not reply.has_error()
    assert "an update of zero is reported" in caplog.text
    assert set(reply.content) == set(usual.content)
    reports = [decode(r.content[MESSAGE]["encoded"]) for r in (usual, reply)]  # type: ignore[arg-type, index]
    assert form(reports[0]) == form(reports[1])
    if reveal:
        metrics = [r.content["metrics"] for r in (usual, reply)]
        assert [{n: type(v) for n, v in m.items()} for m in metrics] == [{"loss": float}] * 2
        assert np.isnan(metrics[1]["loss"])  # type: ignore[arg-type, call-overload]


def test_a_client_of_an_app_is_charged_before_it_trains(tmp_path: Path) -> None:
    accounts = []

    def watching(arrays: dict[str, np.ndarray], node: int) -> Any:
        (account,) = (tmp_path / "state-home" / "fedveil").glob("*-1.account")
        accounts.append(decode(account.read_bytes())["reports"])
        raise ValueError("and then it fails")

    for _ in range(3):
        asked({"name": "rr"}, watching)
    assert accounts == [1, 2, 3]


def test_a_killed_app_has_paid(tmp_path: Path) -> None:
    """A context that is lost with the process does not undo its charges."""

    class Killed(KeyboardInterrupt):
        pass

    def killed(arrays: dict[str, np.ndarray], node: int) -> Any:
        raise Killed

    pin = {"max_epsilon": 25.0, "delta": 0.0, "protection": "rr", "eps": 0.2}
    rr = {"name": "rr", "unary": {"eps": 0.2}}  # 2 * 0.2 * 21 = 8.4 per report
    for _ in range(2):
        with pytest.raises(Killed):
            asked(rr, killed, **pin)
    assert "above its max_epsilon = 25" in asked(rr, stay, **pin).error.reason


def test_the_evaluation_of_an_app_that_fails_looks_like_any_other() -> None:
    app = client_app(stay, [ProtectMod(reveal="loss")])
    broken = client_app(stay, [ProtectMod(reveal="loss")])

    @broken.query("other")
    def _raises(message: Message, context: Any) -> Message:
        raise ValueError("patient 4711 has no label")

    grid = FakeGrid([Node(1, app), Node(2, broken)])
    content = to_records({})
    good, bad = (
        grid.send_and_receive([Message(content, node, kind)])[0]
        for node, kind in ((1, "evaluate"), (2, "query.other"))
    )
    assert not bad.has_error()
    assert set(bad.content["metrics"]) == set(good.content["metrics"]) == {"loss"}


@pytest.mark.parametrize(
    ("reveal", "told"), [("loss", f"the metric loss (reveal)\n{TIMING}"), ("", TIMING)]
)
@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_what_an_evaluation_tells_is_in_the_clients_own_account_before_its_app_is_asked(
    kind: str, reveal: str, told: str, tmp_path: Path
) -> None:
    """A client that reveals no metric still answers later, the longer its app takes."""
    accounts = []

    def watching(message: Message, context: Any, call_next: Any) -> Message:
        (account,) = (tmp_path / "state-home" / "fedveil").glob("*-1.account")
        state = decode(account.read_bytes())
        accounts.append([state["reports"], state["alike.in_clear"], state["any.in_clear"]])
        return call_next(message, context)

    app = client_app(stay, [ProtectMod(reveal=reveal), watching])
    grid = FakeGrid([Node(1, app)])
    for _ in range(2):
        (reply,) = grid.send_and_receive([Message(to_records({}), 1, kind)])
        assert set(reply.content) == {"metrics"}
    assert accounts == [[0, told, told]] * 2


def test_a_round_of_an_app_goes_on_with_the_means_of_those_that_have_one() -> None:
    def some(arrays: dict[str, np.ndarray], node: int) -> Any:
        return raising(arrays, node) if node == 1 else stay(arrays, node)

    grid = FakeGrid(Node(n, client_app(some, [ProtectMod(reveal="loss")])) for n in range(1, 5))
    strategy = ProtectedStrategy(FedAvg(), protection="rr", reveal="loss")
    result = strategy.start(grid, record_of({"w": np.zeros(9, np.float32)}), num_rounds=1)
    assert strategy.rounds[0].reports == 4
    assert result.train_metrics_clientapp[1] == {"loss": 0.5}
    assert strategy.ledger.in_clear == ("the metric loss (reveal)", TIMING)

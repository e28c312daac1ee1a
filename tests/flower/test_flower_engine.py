"""A deployed job over a grid in this process: the real ServerApp and ClientApp, without sockets."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedveil
import parts
from fedveil import run_display
from fedveil.base.message import decode, encode
from fedveil.base.quiet import Quiet
from fedveil.engine.cohorts import Cohorts
from fedveil.errors import (
    DeploymentError,
    FolderInUse,
    MessageTooLong,
    ModelInvalid,
    RunFailed,
    RunFolderError,
    RunStopped,
)
from fedveil.flower.job import client_training, flower_engine
from fedveil.flower.records import COMMON, MESSAGE, encoded_records
from fedveil.pages.dossier.dossier_folder import Dossier
from fedveil.pages.read_run import read_run
from fedveil.pages.run_folder_page import page_of
from fedveil.pages.run_list import run_list
from fedveil.privacy.ledger import Ledger
from fedveil.record.run_folder import TRACEBACK, RunFolder
from fedveil.record.started_rounds import Attempts
from flower_parts import (
    CLIENTS,
    POSITIONS,
    PW,
    SHARES,
    LocalGrid,
    app_of,
    job,
    kinds,
    named,
    same,
    serve,
    weights,
)
from folders import records_of

BITS = {"name": "rr", "unary": {"report": "bits"}}
RR = {"name": "rr", "unary": {"eps": 0.5}}
#: The server waits in real time for clients that do not answer.
SHORT = {"name": "not_encrypt", "pw_encrypt": {"cipher_time_window": 300}}


def run(tmp_path: Path, settings: Any, *, seeded: bool = False) -> tuple[Any, LocalGrid]:
    app, _ = app_of(tmp_path / "app", settings, seeded=seeded)
    grid = LocalGrid(app, tmp_path / "state")
    return serve(app, grid, tmp_path / "run"), grid


@pytest.mark.parametrize("position", POSITIONS, ids=named)
def test_a_deployed_job_ends_with_the_simulators_bytes(tmp_path: Path, position: Any):
    settings = job(protection=position)
    deployed, _ = run(tmp_path, settings, seeded=True)
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    assert same(deployed, simulated)
    assert (deployed.folder / "report.html").is_file()
    assert not same(deployed, fedveil.simulate(job(seed=1, protection=position), tmp_path / "b"))
    for mine, theirs in zip(deployed.metrics, simulated.metrics, strict=True):
        assert mine["bytes_up"] == theirs["bytes_up"] > 0
        for key in ("reports", "accuracy", "loss", "epsilon_run_most_drawn", "dropped", "void"):
            assert mine[key] == theirs[key]


@pytest.mark.parametrize("task", ["regression", "task_parts:OwnStep", "inputs"])
def test_a_task_is_deployed_as_it_is_simulated(tmp_path: Path, task: str):
    own = {"data": {"name": "task_parts:slope"}, "model": "task_parts:linear", "task": task}
    if task == "inputs":
        own = {"data": {"name": "task_parts:inputs"}, "model": "task_parts:words"}
    settings = job(rounds=1, **own)
    deployed, _ = run(tmp_path, settings)
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    assert same(deployed, simulated)
    assert deployed.metrics[0]["loss"] == simulated.metrics[0]["loss"]
    if task != "inputs":
        assert deployed.metrics[0]["measures"] == simulated.metrics[0]["measures"]
        assert (tmp_path / "app" / "task_parts.py").is_file()


FALLING = {"lr": 0.4, "lr_schedule": "step", "lr_rounds": 1, "lr_factor": 0.3}


@pytest.mark.parametrize(
    "training",
    [
        FALLING,
        {**FALLING, "lr_schedule": "cosine", "lr_rounds": 2},
        {**FALLING, "algorithm": "fedcm", "own_direction": 0.3},
        {**FALLING, "algorithm": "scaffold"},
        {**FALLING, "algorithm": "feddyn", "dynamic": 0.3},
    ],
    ids=["step", "cosine", "fedcm", "scaffold", "feddyn"],
)
def test_a_deployed_client_trains_at_the_rate_of_the_round(
    tmp_path: Path, training: dict[str, Any]
):
    settings = job(rounds=3, model="parts:linear", training={**training, "batch_size": 10})
    deployed, _ = run(tmp_path, settings, seeded=True)
    assert same(deployed, fedveil.simulate(settings, tmp_path / "simulated"))


def test_a_head_is_trained_on_features_that_a_client_computes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It does so once per process, on its own examples only, and with the simulator's bytes."""
    monkeypatch.setattr(client_training, "_seen_before", {})
    settings = job(model="parts:backbone", training={"train": "head", "batch_size": 50})
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    calls: list[int] = []
    monkeypatch.setattr(parts.Backbone, "saw", calls.append)
    deployed, _ = run(tmp_path, settings, seeded=True)
    assert same(deployed, simulated)
    # 240 training examples, 90 test examples, one example of each owner to check the model, and the
    # server's trial batch of test examples, which it trains on, inspects and tests.
    assert sum(calls) == 240 + 90 + 2 * (CLIENTS + 1) + 3 * 50


def test_with_the_systems_randomness_it_ends_where_the_simulator_does(tmp_path: Path):
    """If a report draws nothing, the bytes are equal. Otherwise they differ only by its
    rounding."""
    assert same(run(tmp_path, job())[0], fedveil.simulate(job(), tmp_path / "simulated"))
    deployed, _ = run(tmp_path / "pw", job(protection=PW))
    simulated = weights(fedveil.simulate(job(protection=PW), tmp_path / "pw" / "simulated"))
    apart = max(np.abs(value - simulated[n]).max() for n, value in weights(deployed).items())
    assert 0 < apart < 1e-3  # updates are rounded at random to multiples of 1.5e-5


# --- what leaves a client -----------------------------------------------------------------------

#: The fields of a report. Nothing else may be sent.
REPORTS = {
    "not_encrypt": {"round", "update"},
    "dp_encrypt": {"round", "noised"},
    "signds": {"round", "dimensions", "sign", "bit"},
}


def told(reply: Any) -> dict[str, Any]:
    """Return the single message in a reply."""
    assert list(reply.content) == [MESSAGE]
    assert list(reply.content[MESSAGE]) == ["encoded"]
    return decode(reply.content[MESSAGE]["encoded"])


@pytest.mark.parametrize("weighting", ["equal", "by_size"])
def test_only_the_report_crosses(tmp_path: Path, weighting: str):
    _, grid = run(tmp_path, job(server={"weighting": weighting}))
    introductions, reports = grid.replies[:CLIENTS], grid.replies[CLIENTS:]
    assert [told(reply) for reply in introductions] == [{"client": n} for n in range(CLIENTS)]
    size = {"examples"} if weighting == "by_size" else set()
    assert all(told(reply).keys() == {"round", "update"} | size for reply in reports)
    assert len(reports) == 2 * CLIENTS
    assert all(not context.state for context in grid.contexts.values())


def test_the_number_of_examples_is_said_where_the_job_reveals_it(tmp_path: Path):
    settings = job(server={"weighting": "equal"}, deployment={"reveal": ["examples"]})
    result, grid = run(tmp_path, settings)
    assert told(grid.replies[0]) == {"client": 0, "examples": 40}
    assert "client 0 is here, with 40 examples" in (result.folder / "events.log").read_text()


def test_weights_travel_with_the_phase_that_trains_alone(tmp_path: Path):
    _, grid = run(tmp_path, job(rounds=1, protection=PW))
    phases = ["advertise", "share", "masked", "unmask"]
    assert kinds(grid.sent) == ["query.introduce", *(f"train.{phase}" for phase in phases)]
    for message in grid.sent[CLIENTS:]:
        common = decode(message.content[COMMON]["encoded"])
        assert ("weights" in common) == (message.metadata.message_type == "train.masked")
    shared = {id(m.content[COMMON]) for m in grid.sent if m.metadata.message_type == "train.masked"}
    assert len(shared) <= CLIENTS  # one shared object before each copy was sent


def test_reasons_stay_with_the_client(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "flwr"):
        result, grid = run(tmp_path, job(model="parts:picky"))
    failed = [r for r in grid.replies if r.has_error()]
    assert failed
    assert {(r.error.code, r.error.reason) for r in failed} == {(200, "failed")}
    told = "cannot answer: RuntimeError: these examples are not to my taste"
    assert re.search(rf"{told} \(.*parts\.py, line \d+\)", caplog.text)
    assert result.metrics[0]["failed"] == {"the client's own log says why": len(failed) // 2}
    assert "taste" not in (result.folder / "events.log").read_text()


def test_an_update_that_is_not_finite_is_withheld_without_a_word(tmp_path: Path):
    result, grid = run(tmp_path, job(model="parts:diverging"))
    assert {r.error.reason for r in grid.replies if r.has_error()} == {"withheld"}
    assert sum(result.metrics[0]["withheld"].values()) > 0


def test_a_run_in_which_every_client_fails_stops(tmp_path: Path):
    """It stops although its model does well on the server's examples."""
    app, _ = app_of(tmp_path / "app", job(model="parts:picky"))
    grid = LocalGrid(app, tmp_path / "state")
    for context in grid.contexts.values():
        context.node_config["data"] = "parts:eager_data"
    with pytest.raises(RunStopped, match="every client of round 1 failed"):
        serve(app, grid, tmp_path / "run")


def test_a_model_that_must_fail_fails_before_anybody_is_asked(tmp_path: Path, capsys: Any):
    app, _ = app_of(tmp_path / "app", job(model="parts:hopeless"))
    grid = LocalGrid(app, tmp_path / "state")
    with pytest.raises(ModelInvalid, match="cannot train: RuntimeError: these examples are not"):
        serve(app, grid, tmp_path / "run")
    assert grid.sent == []
    said = capsys.readouterr().out.strip()
    assert said.startswith("error: model = 'parts:hopeless' cannot train: ")
    assert re.search(r"parts\.py, line \d+\); the traceback is in ", said)
    assert "flwr run" not in said
    assert (tmp_path / "run" / TRACEBACK).exists()


# --- dropouts, and wrong replies ----------------------------------------------------------------


def reports_of(*clients: int) -> Callable[[Any], bool]:
    """Return a function that recognises replies of these clients in a round."""
    return lambda m: (
        bool(m.metadata.reply_to_message_id)
        and m.metadata.message_type.startswith("train.")
        and m.metadata.src_node_id - 100 in clients
    )


@pytest.mark.parametrize("position", [SHORT, PW], ids=named)
def test_a_missing_reply_is_a_dropout(tmp_path: Path, position: Any):
    waiting = {"answer_s": 0.3}
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=position, deployment=waiting))
    grid = LocalGrid(app, tmp_path / "state")
    lost = reports_of(2)
    grid.tamper = lambda m: None if lost(m) and "advertise" not in m.metadata.message_type else m
    record = serve(app, grid, tmp_path / "run").metrics[0]
    assert (record["dropped"], record["reports"], record["void"]) == (1, CLIENTS - 1, None)


def test_below_the_threshold_the_round_is_void_and_the_run_goes_on(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job(rounds=3, protection=PW))
    grid = LocalGrid(app, tmp_path / "state")
    lost = reports_of(0, 1, 2)

    def tamper(message: Any) -> Any:
        metadata = message.metadata
        late = metadata.group_id != "1" and "masked" in metadata.message_type
        return None if late and lost(message) else message

    grid.tamper = tamper
    result = serve(app, grid, tmp_path / "run")
    void = "the round is void: 3 clients answered in phase masked, but 4 are needed"
    assert [record["void"] for record in result.metrics] == [None, void, void]
    # No client still has keys: those that did not finish had to forget them.
    assert kinds(grid.sent)[-1] == "query.forget"
    left = {path.suffix for path in (tmp_path / "state").iterdir() if path.stem != "seal-key"}
    assert left <= {".answered", ".lock", ".seal"}
    assert all(not context.state for context in grid.contexts.values())


def test_replies_that_are_no_reports_are_refused_by_name(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job(rounds=1))
    grid = LocalGrid(app, tmp_path / "state")
    sizes: list[int] = []

    def tamper(message: Any) -> Any:
        if reports_of(0)(message):
            message.content["metrics"] = type(message.content[MESSAGE])({"loss": 1.0})
        if reports_of(1)(message):
            message.content[MESSAGE]["encoded"] = b"pickle"
        if reports_of(2)(message):
            message.content[MESSAGE] = encoded_records(
                encode({"round": 1, "update": np.zeros(3, np.float32)})
            )[MESSAGE]
        if reports_of(3)(message):
            sizes.append(len(message.content[MESSAGE]["encoded"]))
            message.content[MESSAGE]["encoded"] += bytes(10_000_000)
        return message

    grid.tamper = tamper
    record = serve(app, grid, tmp_path / "run").metrics[0]
    assert record["reports"] == CLIENTS - 4
    # A weight of 10 takes two bytes less than the largest.
    too_long, most = sizes[0] + 10_000_000, sizes[0] + 2
    assert sorted(record["rejected"]) == [
        "a message holds the records 'fedveil', 'metrics', a message of fedveil holds 'fedveil' "
        "alone",
        "fields are missing or unknown",
        "the bytes do not start like a message of this version",
        f"the message has {too_long} bytes, but at most {most} are allowed here",
    ]


def test_a_client_without_a_node_is_a_dropout_and_too_few_to_start_end_the_run(tmp_path: Path):
    settings = job(rounds=1, deployment={"start_clients": 4, "wait_s": 0.1})
    app, _ = app_of(tmp_path / "app", settings)
    record = serve(app, LocalGrid(app, tmp_path / "s", range(4)), tmp_path / "run").metrics[0]
    assert (record["dropped"], record["reports"]) == (2, 4)
    with pytest.raises(RunStopped, match="3 of 6 clients were connected within") as caught:
        serve(app, LocalGrid(app, tmp_path / "s", range(3)), tmp_path / "other")
    assert "`flwr run` of the same app resumes" in caught.value.__notes__[0]


def test_a_node_that_became_another_client_is_noticed(tmp_path: Path):
    settings = job(rounds=3, deployment={"start_clients": 5, "wait_s": 0.1})
    app, _ = app_of(tmp_path / "app", settings)
    grid = LocalGrid(app, tmp_path / "state", range(5))

    def tamper(message: Any) -> Any:
        if message.metadata.group_id == "2":
            grid.contexts[104].node_config["client"] = 5
        return message

    grid.tamper = tamper
    result = serve(app, grid, tmp_path / "run")
    assert [record["dropped"] for record in result.metrics] == [1, 2, 1]
    assert "client 5 is here" in (result.folder / "events.log").read_text()


def test_a_restarted_node_takes_its_clients_place(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job(rounds=2))
    grid = LocalGrid(app, tmp_path / "state")

    def tamper(message: Any) -> Any:
        if message.metadata.group_id == "1" and 104 in grid.contexts:
            twin = grid.contexts[104]
            grid.contexts[999] = twin  # the old number still seems to exist
        return message

    grid.tamper = tamper
    result = serve(app, grid, tmp_path / "run")
    assert [record["dropped"] for record in result.metrics] == [0, 0]
    events = (result.folder / "events.log").read_text()
    assert "node 999 says that it is client 4, as node 104 has said" in events


# --- interruptions ------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL."""


def cut_off(grid: LocalGrid, group: str, kind: str = "train.") -> None:
    """End the server when a reply of that round arrives."""

    def tamper(message: Any) -> Any:
        metadata = message.metadata
        if metadata.group_id == group and metadata.reply_to_message_id:
            raise Killed
        return message

    grid.tamper = tamper


@pytest.mark.parametrize("position", ["not_encrypt", PW], ids=named)
def test_a_run_that_was_cut_off_goes_on_to_the_same_bytes(tmp_path: Path, position: Any):
    settings = job(rounds=3, protection=position)
    app, _ = app_of(tmp_path / "app", settings, seeded=True)
    grid = LocalGrid(app, tmp_path / "state")
    cut_off(grid, "2")
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    again = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert same(again, fedveil.simulate(settings, tmp_path / "simulated"))
    assert [record["round"] for record in again.metrics] == [1, 2, 3]


@pytest.mark.parametrize("seeded", [False, True])
def test_reports_of_a_round_that_was_cut_off_have_cost(tmp_path: Path, seeded: bool):
    """Fresh noise makes another report, but repeated bytes do not."""
    settings = job(protection=RR)
    app, _ = app_of(tmp_path / "app", settings, seeded=seeded)
    whole = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "whole").metrics
    for _ in range(2):
        grid = LocalGrid(app, tmp_path / "state")
        cut_off(grid, "2")
        with pytest.raises(Killed):
            serve(app, grid, tmp_path / "run")
    never_resumed = read_run(tmp_path / "run")
    assert (len(never_resumed.records), never_resumed.started["round"]) == (1, 2)
    dossier = Dossier.of(tmp_path / "run")
    metrics = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run").metrics
    assert not read_run(tmp_path / "run").started
    costs = [record["epsilon_run_most_drawn"] for record in metrics]
    expected = [record["epsilon_run_most_drawn"] for record in whole]
    sent = fedveil.simulate(job(rounds=2 if seeded else 3, protection=RR), tmp_path / "sent")
    spent = sent.metrics[-1]["epsilon_run_every_round"]
    assert never_resumed.last["epsilon_run_every_round"] == spent
    assert dossier.evidence.accounts[0].epsilon == spent
    assert "Round 2 was started and has no record" in dossier.page().html()
    if seeded:
        assert costs == expected
    else:
        four = fedveil.simulate(job(rounds=4, protection=RR), tmp_path / "four").metrics
        assert costs == [four[0]["epsilon_run_most_drawn"], four[3]["epsilon_run_most_drawn"]]
        events = (tmp_path / "run" / "events.log").read_text()
        assert "round 2 was started before (2x) and interrupted" in events


def test_a_repeated_round_states_all_rounds_that_were_sent(tmp_path: Path):
    """Round 3 has been sent, and is not repeated yet when the server is killed again in round 2."""
    settings = job(rounds=5, protection=RR, privacy={"delta": 0.0}, checkpoint={"every": 4})
    app, _ = app_of(tmp_path / "app", settings, seeded=True)
    for group in ("3", "2"):
        grid = LocalGrid(app, tmp_path / "state")
        cut_off(grid, group)
        with pytest.raises(Killed):
            serve(app, grid, tmp_path / "run")
        run = read_run(tmp_path / "run")
        assert run.started["round"] == 3
        assert run.last["epsilon_run_every_round"] == 3 * 83
    assert len(run.records) == 1


def test_a_secure_sum_that_clients_do_not_repeat_is_charged(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job(protection=SHARES), seeded=True)
    whole = serve(app, LocalGrid(app, tmp_path / "kept"), tmp_path / "whole").metrics
    grid, replies = LocalGrid(app, tmp_path / "state"), []

    def tamper(message: Any) -> Any:
        if message.metadata.group_id == "1" and message.metadata.reply_to_message_id:
            replies.append(message)
            if len(replies) == 3 * CLIENTS:  # the last masked report
                raise Killed
        return message

    grid.tamper = tamper
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    again = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run").metrics
    assert again[0]["void"]
    assert sum(again[0]["withheld"].values())
    name = "epsilon_run_most_drawn"
    assert [record[name] for record in again] == [record[name] for record in whole]


def test_a_client_whose_first_report_has_left_is_charged_in_a_repetition_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The others suffice for the sum of the repeated round."""
    shares = {**SHARES["distributed_dp"], "dropout_tolerance": 0.34}
    settings = job(protection={"name": "distributed_dp", "distributed_dp": shares}, rounds=3)
    app, _ = app_of(tmp_path / "app", settings, seeded=True)
    grid = LocalGrid(app, tmp_path / "state")

    def tamper(message: Any) -> Any:
        metadata = message.metadata
        reply = metadata.reply_to_message_id and metadata.src_node_id == 101
        if reply and (metadata.group_id, metadata.message_type) == ("2", "train.masked"):
            raise Killed
        return message

    grid.tamper = tamper
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    charged, record_many = dict[int, list[int]](), Ledger.record_many

    def noted(self: Ledger, *spent: Any, clients: Any, ahead: bool = False, **named: Any) -> None:
        if not ahead:
            charged[named["round"]] = list(clients)
        record_many(self, *spent, clients=clients, ahead=ahead, **named)

    monkeypatch.setattr(Ledger, "record_many", noted)
    metrics = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run").metrics
    assert [(m["reports"], sum(m["withheld"].values())) for m in metrics[1:]] == [(4, 2), (6, 0)]
    assert charged == {2: list(range(CLIENTS)), 3: list(range(CLIENTS))}


def test_a_deployment_that_was_killed_in_its_first_round_states_what_was_sent(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job(protection=RR, privacy={"delta": 0.0}))
    grid = LocalGrid(app, tmp_path / "state")
    cut_off(grid, "1")
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (run.records, run.last["epsilon_run_most_drawn"]) == ([], 83)
    assert run_display.of_run(read_run(tmp_path / "run"))["started_round"] == 1
    html = page_of(tmp_path / "run").html()
    assert "round 1 was started and has no record: its reports may have been sent" in html
    assert "no client has sent anything" not in html
    (listed,) = run_list(tmp_path / "run").runs
    assert listed.epsilon is not None
    assert listed.epsilon.epsilon == 83
    with pytest.raises(RunFolderError, match="no checkpoint, but round 1 was started"):
        Dossier.of(tmp_path / "run")


def test_seeded_reports_that_a_limit_forbids_to_repeat_are_charged(tmp_path: Path):
    """The data set's account has a third charge for the repetition, which is beyond its limit."""
    privacy = {"account": str(tmp_path / "account"), "max_epsilon": 170.0, "delta": 0.0}
    app, _ = app_of(tmp_path / "app", job(protection=RR, privacy=privacy), seeded=True)
    grid = LocalGrid(app, tmp_path / "state")
    cut_off(grid, "2")
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    result = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert "would bring the account" in str(result.stopped)
    assert [record["epsilon_run_every_round"] for record in result.metrics] == [83, 166]
    assert result.ledger.epsilon("run") == 166


@pytest.mark.parametrize("every", [1, 9])
def test_total_epsilon_holds_over_rounds_that_were_begun_and_cut_off(tmp_path: Path, every: int):
    """A requested report counts with the epsilon of its opening, in the total and in the ledger."""
    unary = {"eps": 0.5, "adaptive": True, "total_eps": 640.0}
    settings = job(
        rounds=20, protection={"name": "rr", "unary": unary}, checkpoint={"every": every}
    )
    app, _ = app_of(tmp_path / "app", settings)
    asked: list[float] = []
    for _ in range(9):
        grid = LocalGrid(app, tmp_path / "state")
        cut_off(grid, "2")
        try:
            result = serve(app, grid, tmp_path / "run")
            break
        except Killed:
            pass
        finally:
            training = [m for m in grid.sent if m.metadata.message_type == "train.report"]
            mine = [m for m in training if m.metadata.dst_node_id == 100]
            asked += [decode(m.content[MESSAGE]["encoded"])["eps"] for m in mine]
    total = sum(2 * eps * 83 for eps in asked)
    assert max(asked) > min(asked)
    assert 640 - 2 * 83 * max(asked) < total <= 640
    assert "protection.unary.total_eps = 640.0" in result.stopped
    assert result.ledger.epsilon("run") == pytest.approx(total, rel=1e-12)


def test_total_epsilon_holds_over_rounds_whose_reports_all_came_too_late(tmp_path: Path):
    """The reports were sent, so a round without an aggregate costs as much as any other."""
    rr = {"name": "rr", "unary": {"eps": 0.5, "total_eps": 200.0}}  # 83 per report
    app, _ = app_of(tmp_path / "app", job(rounds=9, protection=rr, deployment={"answer_s": 0.1}))
    grid = LocalGrid(app, tmp_path / "state")
    grid.tamper = lambda m: None if reports_of(*range(CLIENTS))(m) else m
    with pytest.raises(RunFailed):
        serve(app, grid, tmp_path / "run")
    records = records_of(tmp_path / "run")
    assert [record["void"] is not None for record in records] == [True, True]
    first, second = (record["epsilon_run_most_drawn"] for record in records)
    assert second > 1.1 * first
    assert "total_eps = 200.0" in (tmp_path / "run" / "events.log").read_text("utf-8")


def test_a_limit_holds_over_rounds_that_were_begun_and_cut_off_before_a_checkpoint(tmp_path: Path):
    """Three rounds of reports were sent before the first checkpoint, which therefore omits them."""
    settings = job(
        rounds=9,
        protection={"name": "signds", "signds": {"sign_eps": 1.0}},
        privacy={"max_epsilon": 8.5, "delta": 0.0},
        checkpoint={"every": 9},
    )
    app, _ = app_of(tmp_path / "app", settings)
    grid = LocalGrid(app, tmp_path / "state")
    cut_off(grid, "3")
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    result = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert len(result.metrics) == 1  # 2 per report: three reports and one more
    assert result.ledger.epsilon("run") == 8


def test_a_run_whose_first_round_was_void_before_any_report_goes_on(tmp_path: Path):
    """No key arrives in round 1, so no report is requested, and no round is recorded as begun."""
    secure = {"name": "pw_encrypt", "pw_encrypt": {"cipher_time_window": 100}}
    app, _ = app_of(tmp_path / "app", job(protection=secure))
    grid = LocalGrid(app, tmp_path / "state")

    def tamper(message: Any) -> Any:
        if message.metadata.group_id == "2":
            raise Killed
        return None if message.metadata.message_type.startswith("train") else message

    grid.tamper = tamper
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    with closing(RunFolder.reopen(tmp_path / "run")) as folder:
        assert Attempts(folder, 0, is_kept=True).begun == []
    result = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert [record["void"] is None for record in result.metrics] == [False, True]


def test_a_run_goes_on_without_a_client_that_did_not_come_back(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job(rounds=2, deployment={"wait_s": 0.1}))
    grid = LocalGrid(app, tmp_path / "state")
    cut_off(grid, "2")
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")
    result = serve(app, LocalGrid(app, tmp_path / "state", range(4)), tmp_path / "run")
    assert [(r["reports"], r["dropped"]) for r in result.metrics] == [(6, 0), (4, 2)]


def test_a_finished_run_that_is_started_again_asks_nobody(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job())
    first = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    grid = LocalGrid(app, tmp_path / "state")
    assert same(first, serve(app, grid, tmp_path / "run"))
    assert not grid.sent


def test_nor_does_one_that_a_limit_has_ended_between_two_checkpoints(tmp_path: Path):
    """The run has a result, and its spending would leave room for no further round."""
    limited = {"max_epsilon": 500.0, "delta": 0.0}
    settings = job(rounds=9, protection=RR, privacy=limited, checkpoint={"every": 4})
    app, _ = app_of(tmp_path / "app", settings)
    first = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert len(first.metrics) == 6  # 83 per report
    grid = LocalGrid(app, tmp_path / "state")
    again = serve(app, grid, tmp_path / "run")
    assert not [message for message in grid.sent if message.metadata.message_type[:5] == "train"]
    assert (again.stopped, same(first, again)) == (first.stopped, True)


def test_the_folder_of_another_job_is_refused(tmp_path: Path):
    app, _ = app_of(tmp_path / "app", job())
    serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    other, _ = app_of(tmp_path / "other", job(seed=1))
    with pytest.raises(DeploymentError, match="holds the run of another job"):
        serve(other, LocalGrid(other, tmp_path / "state"), tmp_path / "run")


@pytest.mark.parametrize("position", ["not_encrypt", "central_gaussian"])
def test_secret_cohorts_are_the_simulators_where_both_are_seeded(
    tmp_path: Path, position: str
) -> None:
    """Empty rounds are included: they have no result, or noise alone if emptiness must not show."""
    clients = {"number": CLIENTS, "fraction": 0.2, "sampling": "poisson"}
    every = (job(rounds=4, seed=s, protection=position, clients=clients) for s in range(99))
    drawn = ((s, [len(Cohorts(s).draw(number)) for number in range(1, 5)]) for s in every)
    settings, sizes = next(pair for pair in drawn if pair[1][0] and 0 in pair[1])
    deployed, _ = run(tmp_path, settings, seeded=True)
    assert [record["clients"] for record in deployed.metrics] == sizes
    assert [record["reports"] for record in deployed.metrics] == sizes
    assert same(deployed, fedveil.simulate(settings, tmp_path / "simulated"))


def test_secret_cohorts_cannot_be_repeated_by_whoever_has_the_job(tmp_path: Path) -> None:
    clients = {"number": CLIENTS, "fraction": 0.5, "sampling": "poisson"}
    settings = job(rounds=6, protection="central_gaussian", clients=clients)
    deployed, _ = run(tmp_path, settings)
    simulated = [len(Cohorts(settings).draw(number)) for number in range(1, 7)]
    again, _ = run(tmp_path / "again", settings)
    seen = [[record["clients"] for record in one.metrics] for one in (deployed, again)]
    assert len({tuple(simulated), *map(tuple, seen)}) > 1
    assert len(deployed.others) == 3


@pytest.mark.parametrize(
    ("position", "dimension", "what"),
    [
        ("rr", 536_900_000, "a model of 536,900,000 numbers"),
        (PW, 450_000_000, "a report under protection.name = pw_encrypt of 450,000,000 numbers"),
        (BITS, 200_000_000, "a report under protection.name = rr of 200,000,000 numbers"),
    ],
    ids=["model", "masked", "bits"],
)
def test_what_no_message_carries_is_refused_before_anybody_is_asked(
    tmp_path: Path, position: Any, dimension: int, what: str
):
    """The arrays are allocated but never filled, so no gigabyte is used."""
    settings = job(protection=position)
    grid = LocalGrid(app_of(tmp_path / "app", settings)[0], tmp_path / "state")
    engine = flower_engine.FlowerEngine(grid, tmp_path / "app")
    engine.protection(settings, 1 << 20)
    with pytest.raises(MessageTooLong, match=what):
        engine.protection(settings, dimension)
    assert not grid.sent


def test_neither_side_is_silent_while_a_client_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, capsys: Any
):
    """The client's log and the server's both say that training continues."""

    class Eager(Quiet):
        def __init__(self, every_s: float, say: Callable[[float], None]) -> None:
            self.said = threading.Event()

            def tell(seconds: float) -> None:
                say(seconds)
                self.said.set()

            assert every_s <= 60
            super().__init__(0.01, tell)

        def stop(self) -> None:
            assert self.said.wait(60)
            super().stop()

    monkeypatch.setattr(client_training, "Quiet", Eager)
    monkeypatch.setattr(run_display, "Quiet", Eager)
    with caplog.at_level(logging.INFO, "flwr"):
        run(tmp_path, job(rounds=2))
    for round in (1, 2):
        assert f"round {round}: client 0 trains on its examples" in caplog.text
        assert re.search(rf"round {round}: still training, \d+ s so far", caplog.text)
    told = capsys.readouterr().out
    assert re.search(r"waiting for clients and reports of round 1/2: \d+\.\d s so far", told)


def test_a_warning_in_training_is_in_the_clients_log_and_not_with_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, "flwr"):
        deployed, _ = run(tmp_path, job(rounds=1, model="parts:warning"))
    logged = [record.getMessage() for record in caplog.records if record.name == "flwr"]
    assert logged.count("UserWarning: mind the step") == CLIENTS
    assert "mind the step" not in (deployed.folder / "events.log").read_text("utf-8")


def test_a_runs_folder_is_one_servers_until_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was just killed still has the folder for a moment."""
    settings, path = job(rounds=1), tmp_path / "run"
    app, deployed = app_of(tmp_path / "app", settings)
    serve(app, LocalGrid(app, tmp_path / "state"), path)
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(flower_engine, "time", clock)
    folder = flower_engine.open_folder(path, deployed)
    with pytest.raises(FolderInUse):
        flower_engine.open_folder(path, deployed)
    assert 60.0 <= sum(slept) <= 62.0
    monkeypatch.setattr(clock, "sleep", lambda seconds: folder.close())
    flower_engine.open_folder(path, deployed).close()


@pytest.mark.parametrize(("on_a_node", "own_layers"), [(1, []), (2, []), (1, ["*bias"])])
def test_a_server_says_who_shares_a_node_and_whose_layers_it_shows(
    on_a_node: int, own_layers: list[str]
) -> None:
    engine = flower_engine.FlowerEngine.__new__(flower_engine.FlowerEngine)
    dataset: Any = SimpleNamespace(example_shape={"image": (3, 4), "age": ()})
    deployment = {"clients_per_node": on_a_node}
    settings = job(deployment=deployment, clients={"own_layers": own_layers, "number": 6})
    assert engine.settle(settings, dataset) == settings
    said = list(engine.describe())
    assert said[0].endswith("; their reasons, warnings and times stay with them")
    assert "image, age" in said[1]
    assert [line[:30] for line in said[2:]] == [
        *(["up to 2 clients share a node: "] if on_a_node == 2 else []),
        *(["figures are those of the layer"] if own_layers else []),
    ]

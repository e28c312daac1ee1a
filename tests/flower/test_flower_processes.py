"""A deployed job on real Flower processes, which are killed like machines that fail.

One federation serves all tests: any exchange with three SuperNodes takes seconds. `.ci/run` also
runs examples/flower/loopback.py.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.numpy

from folders import EXAMPLES

pytest.importorskip("flwr")

import fedveil
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.federated.job import Job
from fedveil.flower.job.deploy import deployable, write_app
from fedveil.pages.read_run import read_run
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import PrivacyLoss
from fedveil.record.run_folder import RunFolder

sys.path.append(str(EXAMPLES / "flower"))
from loopback import Loopback

pytestmark = pytest.mark.slow

LIMIT_S = 400.0


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with Loopback(tmp_path_factory.mktemp("flower"), 3, secured=False) as loopback:
        loopback.start_superlink()
        for number in range(3):
            loopback.start_node(number)
        yield loopback


def job(**changes: object) -> Job:
    settings = {
        "clients": {"number": 3, "fraction": 1.0},
        "training": {"epochs": 1},
        "protection": {"pw_encrypt": {"cipher_time_window": 60_000}},
    }
    return Job(**{**settings, **changes})


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {LIMIT_S:g} s"
        time.sleep(0.1)


def rounds_in(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def test_a_superlink_killed_three_times_costs_the_round_in_hand_each_time(
    federation: Loopback, tmp_path: Path
):
    """Restarted on its database, it finds every node again and ends with the simulator's bytes."""
    settings = job(name="killed-link", rounds=5)
    write_app(tmp_path / "app", deployable(settings))
    folder = tmp_path / "run"
    for killed in (1, 2, 3):
        federation.run(tmp_path / "app", folder)
        until(lambda rounds=killed: rounds_in(folder) >= rounds, f"round {killed}")
        federation.kill("superlink")
        federation.kill("run")
        assert killed <= rounds_in(folder) < 5
        assert not (folder / "model.safetensors").exists()
        federation.start_superlink()
    assert federation.run(tmp_path / "app", folder).wait(LIMIT_S) == 0
    events = (folder / "events.log").read_text()
    assert events.count("went on after round") == 3
    assert [events.count(f"client {number} is here") for number in range(3)] == [4, 4, 4]
    records = read_run(folder).records
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5]
    assert [(record["reports"], record["dropped"]) for record in records] == [(3, 0)] * 5
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    theirs = (simulated.folder / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == theirs


def poll(folder: Path) -> tuple[Path, int]:
    """Write a question about people of three sites, and return it with its answer."""
    people = [f"{site},{21 + (7 * i) % 60}" for i in range(37) for site in "abc"[: 1 + i % 3]]
    (folder / "people.csv").write_text("\n".join(["site,age", *people]) + "\n")
    question = folder / "question.yaml"
    question.write_text(
        f"{{name: poll, data: {folder / 'people.csv'}, client: site, rows: 50, clients: 3,\n"
        "protection: pw_encrypt, questions: {old: {ask: count, where: age >= 65}}}\n"
    )
    return question, sum(int(person[2:]) >= 65 for person in people)


def test_a_question_is_asked_with_one_command(federation: Loopback, tmp_path: Path):
    question, old = poll(tmp_path)
    asking = federation.ask(question, tmp_path / "app", tmp_path / "answer")
    assert asking.wait(LIMIT_S) == 0
    assert answer_in(tmp_path / "answer") == pytest.approx(old, abs=0.01)


def test_a_deployed_question_is_answered(federation: Loopback, tmp_path: Path):
    question, old = poll(tmp_path)
    federation.call("fedveil", "deploy", str(tmp_path / "app"), str(question))
    assert federation.run(tmp_path / "app", tmp_path / "answer").wait(LIMIT_S) == 0
    assert answer_in(tmp_path / "answer") == pytest.approx(old, abs=0.01)


def answer_in(folder: Path) -> float:
    found = json.loads((folder / "answers.json").read_text())
    return float(found["answers"]["old"]["estimates"][0]["value"])


def test_a_report_that_comes_after_the_deadline_is_charged_and_not_used(
    federation: Loopback, tmp_path: Path
):
    settings = job(name="late", rounds=3, protection="signds", deployment={"answer_s": 25.0})
    write_app(tmp_path / "app", deployable(settings))
    folder = tmp_path / "run"
    run = federation.run(tmp_path / "app", folder)
    until(lambda: rounds_in(folder) >= 1, "the first round")
    federation.signal("node-2", signal.SIGSTOP)
    until(lambda: rounds_in(folder) >= 2, "the second round")
    federation.signal("node-2", signal.SIGCONT)
    assert run.wait(LIMIT_S) == 0
    first, second, third = read_run(folder).records
    assert [(r["reports"], r["dropped"]) for r in (first, second)] == [(3, 0), (2, 1)]
    assert third["reports"] + third["dropped"] == 3  # it may be late again, after its late report
    (given,) = (federation.folder / "state-2").glob("*-2.reports")
    assert int(given.read_text()) >= 2  # by its own count the late report was sent
    ledger = ledger_of(folder)
    spent = ledger.epsilon("run")
    assert spent == pytest.approx(3 * ledger.epsilon("round"))
    ledger.record(PrivacyLoss(1.0), round=4, client=2)
    assert ledger.epsilon("run") == pytest.approx(spent + 1)


def ledger_of(folder: Path) -> Ledger:
    run_folder = RunFolder.reopen(folder)
    try:
        saved = Checkpoint.read(run_folder)
    finally:
        run_folder.close()
    assert saved is not None
    return Ledger.from_state(saved.ledger)


def test_a_task_of_ones_own_travels_with_the_app(federation: Loopback, tmp_path: Path):
    """Data, model, loss and local step are functions of the user's module, on every machine."""
    settings = job(
        name="own-task",
        rounds=2,
        data={"name": "task_parts:slope"},
        model="task_parts:linear",
        task="task_parts:OwnStep",
    )
    write_app(tmp_path / "app", deployable(settings))
    folder = tmp_path / "run"
    assert federation.run(tmp_path / "app", folder).wait(LIMIT_S) == 0
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    theirs = (simulated.folder / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == theirs
    mine = read_run(folder).records
    assert [r["measures"] for r in mine] == [r["measures"] for r in simulated.metrics]


def test_clients_that_share_nodes_end_with_the_simulators_bytes(tmp_path: Path):
    """Seven clients on three SuperNodes, one of which is killed and comes back."""
    protection = {
        "name": "pw_encrypt",
        "pw_encrypt": {"reconstruct_secrets_threshold": 4, "cipher_time_window": 60_000},
    }
    settings = job(
        name="shared-nodes",
        rounds=3,
        clients={"number": 7, "fraction": 1.0},
        protection=protection,
        deployment={"clients_per_node": 3},
    )
    held = {0: "0,2,5", 1: "1,3-4", 2: "6"}
    folder = tmp_path / "run"
    write_app(tmp_path / "app", deployable(settings, seeded=True))
    with Loopback(tmp_path / "flower", 3, secured=True) as loopback:
        loopback.start_superlink()
        for number, clients in held.items():
            loopback.start_node(number, "seeded=true", clients)
        run = loopback.run(tmp_path / "app", folder)
        until(lambda: rounds_in(folder) >= 1, "the first round")
        loopback.kill("node-1")
        until(lambda: rounds_in(folder) >= 2, "the second round")
        loopback.start_node(1, "seeded=true", held[1])
        assert run.wait(LIMIT_S) == 0
        left = [path.name for n in held for path in loopback.folder.glob(f"state-{n}/*.key*")]
    first, second, third = read_run(folder).records
    assert (first["reports"], first["dropped"]) == (7, 0)
    assert (second["reports"], second["dropped"], second["void"]) == (4, 3, None)
    assert third["reports"] in (4, 7)  # the node may have come back in the middle of the round
    assert not left
    events = (folder / "events.log").read_text()
    assert "clients 1 and 3-4 are here" in events
    once = settings.model_copy(update={"rounds": 1})
    again = fedveil.simulate(once, tmp_path / "simulated").metrics[0]
    assert (first["loss"], first["accuracy"]) == (again["loss"], again["accuracy"])


def test_a_killed_supernode_is_a_dropout(federation: Loopback, tmp_path: Path):
    protection = {
        "name": "pw_encrypt",
        "pw_encrypt": {"reconstruct_secrets_threshold": 2, "cipher_time_window": 60_000},
    }
    write_app(tmp_path / "app", deployable(job(name="dead-node", rounds=2, protection=protection)))
    folder = tmp_path / "run"
    run = federation.run(tmp_path / "app", folder)
    until(lambda: rounds_in(folder) >= 1, "the first round")
    federation.kill("node-2")
    assert run.wait(LIMIT_S) == 0
    first, second = read_run(folder).records
    assert (first["reports"], first["dropped"], first["void"]) == (3, 0, None)
    assert (second["reports"], second["dropped"], second["void"]) == (2, 1, None)
    for number in (0, 1):
        assert not list((federation.folder / f"state-{number}").glob("*.key*"))
    tensors = safetensors.numpy.load((folder / "model.safetensors").read_bytes())
    assert tensors

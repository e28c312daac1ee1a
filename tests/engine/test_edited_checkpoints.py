"""Whatever somebody makes of a run's files, going on says one sentence and changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_simulation import job

import fedveil
from edits import Edits, damaged, on_copies, sealed_edits, sentence_of
from fedveil.engine import federation
from fedveil.engine.executors.client_states import ClientStates, open_states
from fedveil.engine.executors.stateful_training import KeptTraining
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.engine.simulation import Simulator
from fedveil.errors import RunFolderError
from fedveil.privacy.ledger import Ledger
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import sealed, unsealed
from fedveil.rounds.outcomes import Answer, Failed

NESTED = ("optimizer", "protection", "ledger")
ADAPTIVE = {"name": "rr", "unary": {"eps": 0.5, "cells": 2, "adaptive": True}}
PROTECTIONS: dict[str, Any] = {
    "not_encrypt": "not_encrypt",
    "signds": {"name": "signds", "signds": {"sign_k": 0.2}},
    "rr": {"name": "rr", "unary": {"eps": 0.5, "cells": 2}},
    "adaptive": ADAPTIVE,
    "pw_encrypt": {"name": "pw_encrypt", "pw_encrypt": {"reconstruct_secrets_threshold": 3}},
    "own": "parts:TwoPhases",
}
#: What can be said of a run in good form that is not so: no digest without a key can tell.
LIES = {
    "weights.negative", "weights.huge",
    "optimizer/m.negative", "optimizer/m.huge", "optimizer/v.huge",
    "ledger/loss.epsilon.huge", "ledger/release.0.ratio.gone", "ledger/release.0.ratio.huge",
    "ledger/release.1.masses.gone", "ledger/open.clients.huge", "ledger/tally.clients.huge",
    "ledger/tally.sums.huge",
    "ledger/in_clear.empty", "ledger/in_clear.shorter", "ledger/in_clear.longer",
    "protection/spent.shorter", "protection/spent.longer", "protection/zeros.huge",
    "protection/estimate.huge",
    "protection/more.added", "protection/rounds.negative", "protection/rounds.huge",
}  # fmt: skip
YOGI = {"optimizer": "yogi"}
#: Where the ledgers of a kind are, and a server optimiser's moments.
THOROUGH = ("dp_encrypt", "rr", "adaptive")


BASE: dict[str, Any] = {"model": "parts:plain", "server": YOGI, "record": {"page": False}}


def interrupted(folder: Path, protection: Any, **changes: Any) -> None:
    """Leave a run behind that has two of its three rounds."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    settings = job(**{**BASE, "protection": protection, **changes})
    with pytest.raises(KeyboardInterrupt):
        fedveil.simulate(settings, folder, progress=stop)


def refused(folder: Path) -> str | None:
    return sentence_of(folder, fedveil.resume)


def each(folder: Path, name: str, edits: Iterator[tuple[str, bytes]]) -> Edits:
    return on_copies(folder, name, edits, fedveil.resume)


#: Their checkpoints have the fields of another's: of `not_encrypt` and of `adaptive`.
LIKE_OTHERS = ("pw_encrypt", "rr")


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the trial of the job, and the advice after a run: neither reads a checkpoint."""
    monkeypatch.setattr(Simulator, "try_out", lambda *_: None)
    monkeypatch.setattr(federation, "advise", lambda *_: None)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    "protection",
    [pytest.param(p, marks=[pytest.mark.slow] * (p in LIKE_OTHERS)) for p in PROTECTIONS],
)
def test_an_edited_checkpoint_is_one_sentence(protection: str, tmp_path: Path) -> None:
    """With a digest that was made again, as anybody can."""
    folder = tmp_path / "run"
    interrupted(folder, PROTECTIONS[protection])
    nested = NESTED if protection in THOROUGH else NESTED[1:2]
    edits = sealed_edits(folder / "checkpoint" / "latest", nested)
    said = dict(each(folder, "checkpoint/latest", edits))
    assert {how for how, sentence in said.items() if sentence is None} <= LIES
    assert sum(sentence is not None for sentence in said.values()) >= 45


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an interrupted run, which nobody changes."""
    folder = tmp_path_factory.mktemp("edited") / "run"
    interrupted(folder, "dp_encrypt")
    return folder


#: What follows the metrics that a checkpoint vouches for is the line of a process that was killed,
#: and the last line of a job may end without a line's end.
HARMLESS = {
    ("metrics.jsonl", "longer"),
    ("job.yaml", "shorter"),
    ("checkpoint/job.yaml", "shorter"),
}


@pytest.mark.parametrize(
    "name", ["checkpoint/latest", "checkpoint/job.yaml", "job.yaml", "metrics.jsonl"]
)
def test_a_file_that_was_damaged_is_one_sentence(name: str, run: Path) -> None:
    for how, sentence in each(run, name, damaged((run / name).read_bytes())):
        assert (sentence is None) == ((name, how) in HARMLESS), how


def test_a_file_that_was_taken_away_is_one_sentence(run: Path) -> None:
    for name in ("checkpoint/latest", "checkpoint/job.yaml", "job.yaml", "metrics.jsonl"):
        copy = run.parent / "without"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        (copy / name).unlink()
        assert name in str(refused(copy))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    """The record of a round is written before the round's checkpoint."""
    folder = RunFolder.create(tmp_path / "run", "unequal", None)
    for rounds in (1, 3, 4):
        (folder.path / "metrics.jsonl").write_text("{}\n" * rounds)
        if rounds <= 3:
            assert Checkpoint.read(folder, every=3) is None
    with pytest.raises(RunFolderError, match="holds the records of 4 rounds"):
        Checkpoint.read(folder, every=3)
    folder.close()


def test_a_run_without_a_checkpoint_says_that_it_starts_over(tmp_path: Path) -> None:
    """It may have been killed before the first checkpoint, or somebody deleted this checkpoint."""
    settings = job(rounds=3, checkpoint={"every": 2})

    def kill(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedveil.simulate(settings, tmp_path / "run", progress=kill)
    log, latest = tmp_path / "run/events.log", tmp_path / "run/checkpoint/latest"
    assert "starts over" not in log.read_text()
    latest.unlink(missing_ok=True)
    warned: list[str] = []
    resumed = fedveil.resume(tmp_path / "run", warn=warned.append)
    sentence = (
        f"{latest} does not exist, so the run starts over at round 1 and replaces the records of "
        f"2 rounds in metrics.jsonl"
    )
    assert log.read_text().count(sentence) == 1
    assert warned[0] == sentence
    assert [record["round"] for record in resumed.metrics] == [1, 2, 3]


@pytest.mark.parametrize("every", [1, 4, 5])
def test_a_run_that_has_ended_does_not_begin_again_without_its_checkpoint(
    every: int, tmp_path: Path
) -> None:
    """A run of fewer rounds than lie between two checkpoints saves the last one anyway."""
    folder = RunFolder.create(tmp_path / "run", "unequal", None)
    (folder.path / "metrics.jsonl").write_text("{}\n")
    assert Checkpoint.read(folder, every=every) is None
    (folder.path / "model.safetensors").write_bytes(b"")
    with pytest.raises(RunFolderError, match="holds the records of 1 round\\. Restore"):
        Checkpoint.read(folder, every=every)
    folder.close()


@pytest.mark.usefixtures("brief")
def test_edited_metrics_are_one_sentence(run: Path) -> None:
    """Each key of a record, with the checkpoint's digests made again."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    texts = ["\n".join(lines[:1]), "\n".join([*lines, lines[1]]), "\n".join(lines[::-1]), "[]\n3"]
    record = json.loads(lines[1])
    for key in record:
        texts += [
            "\n".join([lines[0], json.dumps({**record, key: other})])
            for other in ([1], {"a": "b"}, True, None if key != "void" else 3)
        ]
        texts.append(
            "\n".join([lines[0], json.dumps({k: v for k, v in record.items() if k != key})])
        )
    taken = []
    for text in texts:
        copy = run.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        vouch(copy, text.encode() + b"\n")
        sentence = refused(copy)
        if sentence is None:
            taken.append(text)
        else:
            assert f"{copy / 'metrics.jsonl'} is damaged: " in sentence
    # Which times were taken, and what else is said in good form, is not known to be otherwise.
    told = [
        key for key in record if key.startswith("seconds_") or key in ("rests_on_server", "trainer")
    ]
    assert len(taken) == len(told)


def vouch(folder: Path, metrics: bytes) -> None:
    """Let the checkpoint vouch for other metrics, as whoever edits both can."""
    (folder / "metrics.jsonl").write_bytes(metrics)
    file = folder / "checkpoint" / "latest"
    about = {"metrics_bytes": len(metrics), "metrics_digest": hashlib.sha256(metrics).hexdigest()}
    file.write_bytes(sealed({**unsealed(file.read_bytes()), **about}))


def test_two_copies_of_a_job_that_were_edited_alike_are_not_the_checkpoints(run: Path) -> None:
    copy = run.parent / "both"
    shutil.copytree(run, copy)
    for file in (copy / "job.yaml", copy / "checkpoint" / "job.yaml"):
        file.write_text(file.read_text().replace("lr: 0.2", "lr: 0.1"))
    assert "belongs to another job, another model or other data" in str(refused(copy))


def test_fewer_rounds_than_are_over_are_one_sentence(run: Path) -> None:
    copy = run.parent / "fewer"
    shutil.copytree(run, copy)
    for file in (copy / "job.yaml", copy / "checkpoint" / "job.yaml"):
        file.write_text(file.read_text().replace("rounds: 3", "rounds: 1"))
    assert "latest is damaged: round = 2 is outside [1, 1]" in str(refused(copy))


def test_an_edited_best_model_is_one_sentence(tmp_path: Path) -> None:
    """That of another round than the best one among them."""
    interrupted(tmp_path / "run", "not_encrypt", stopping={"keep": "best"})
    edits = sealed_edits(tmp_path / "run" / "checkpoint" / "latest", ("best",))
    mine = ((how, data) for how, data in edits if how in FEW)
    said = dict(each(tmp_path / "run", "checkpoint/latest", mine))
    assert said.keys() == FEW
    assert {how for how, sentence in said.items() if sentence is None} == {"best/weights.huge"}


FEW = {
    *("best.gone", "best.text", "best/more.added", "best/round.gone", "best/round.negative"),
    *("best/weights.shorter", "best/weights.nan", "best/weights.huge"),
}
#: Clients that keep something, which no server optimiser is for.
KEEPS: dict[str, Any] = {
    "training": {"algorithm": "feddyn", "dynamic": 0.3, "batch_size": 10},
    "server": {"optimizer": "none"},
}


def test_what_clients_keep_is_one_sentence_too(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.save(0, 2, np.ones(5, np.float32))
    file = tmp_path / "clients" / "0-2"
    said = {}
    for how, data in [*sealed_edits(file), *damaged(file.read_bytes())]:
        file.write_bytes(data)
        try:
            said[how] = None if states.load(0, 3, 5) is not None else "nothing"
        except RunFolderError as error:
            said[how] = str(error)
            assert f"{file} is damaged: " in said[how]
    lies = {"kept.negative", "kept.huge"}
    assert {how for how, sentence in said.items() if sentence is None} == lies
    assert len(said) >= 20


@pytest.mark.parametrize("name", ["x-1", "1-", "-1-1", "0-1.part"])
def test_a_strangers_file_among_what_clients_keep_is_nobodys(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(run, "not_encrypt", **KEEPS)
    (run / "clients" / name).write_bytes(b"")
    assert len(fedveil.resume(run).metrics) == 3
    assert (run / "clients" / name).exists()


def test_what_clients_keep_cannot_be_taken_away(tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(run, "not_encrypt", **KEEPS)
    shutil.rmtree(run / "clients")
    assert "clients is missing. Restore it from a copy" in str(refused(run))
    nothing = np.zeros(8, np.int64)
    with pytest.raises(RunFolderError, match="clients is missing"):
        open_states(run, 1, nothing)
    assert open_states(run, 0, nothing).load(0, 1, 3) is None, "before the first round"


@pytest.mark.usefixtures("brief")
def test_a_state_of_one_client_cannot_be_taken_away(tmp_path: Path) -> None:
    """Otherwise, this client would silently begin without what it has kept."""
    run = tmp_path / "run"
    interrupted(run, "not_encrypt", **KEEPS)
    held = {int(path.name.partition("-")[0]): path for path in (run / "clients").iterdir()}
    assert {path.name.partition("-")[2] for path in held.values()} == {"1", "2"}
    for client, path in held.items():
        saved = path.read_bytes()
        path.unlink()
        assert f"{path} is missing. Restore it" in str(refused(run)), client
        path.write_bytes(saved)
    assert len(fedveil.resume(run).metrics) == 3


@pytest.mark.usefixtures("brief")
def test_a_client_that_failed_in_training_has_no_state_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report of an update of zero is in the sum, and it has saved nothing."""
    trained = KeptTraining._trained

    def failing(self: KeptTraining, client: int) -> Answer:
        return Failed(client, "ValueError: rows") if client % 3 else trained(self, client)

    monkeypatch.setattr(KeptTraining, "_trained", failing)
    run, most = tmp_path / "run", {"number": 8, "fraction": 1.0}
    interrupted(run, "dp_encrypt", clients=most, **KEEPS)
    assert {path.name for path in (run / "clients").iterdir()} == {"0-2", "3-2", "6-2"}
    records = fedveil.resume(run).metrics
    assert [(record["reports"], record["unusable"]) for record in records] == [
        (8, {"ValueError: rows": 5})
    ] * 3


@pytest.mark.usefixtures("brief")
def test_an_older_checkpoint_does_not_resume_with_the_states_of_later_rounds(
    tmp_path: Path,
) -> None:
    run, latest = tmp_path / "run", tmp_path / "run" / "checkpoint" / "latest"
    older: list[bytes] = []

    def stop(record: dict[str, Any]) -> None:
        older.append(latest.read_bytes())
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedveil.simulate(job(**{**BASE, **KEEPS, "rounds": 5}), run, progress=stop)
    for saved in older[:2]:
        latest.write_bytes(saved)
        sentence = str(refused(run))
        assert f"{run / 'clients'}/" in sentence
        assert "is missing. Restore it" in sentence
    latest.write_bytes(older[2])
    assert len(fedveil.resume(run).metrics) == 5


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("protection", ["adaptive", "signds"])
def test_a_ledger_of_the_other_kind_is_one_sentence(protection: str, tmp_path: Path) -> None:
    """An adaptive run must not continue with the costs of rounds that were fixed in advance."""
    folder = tmp_path / "run"
    interrupted(folder, PROTECTIONS[protection])
    saved = Checkpoint.at(folder)
    assert saved is not None
    other = Ledger(adaptive=protection != "adaptive")
    with closing(RunFolder.reopen(folder)) as opened:
        replace(saved, ledger=other.to_state()).write(opened)
    assert "field adaptive does not match the protection" in str(refused(folder))

"""A deployed run with edited files: one sentence from the server, none from a client."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from test_flower_engine import RR, Killed, app_of, cut_off, job, serve

from edits import damaged, on_copies, sealed_edits, sentence_of
from fedveil.errors import DeploymentError
from fedveil.flower.sealed_state import SealedState, StateFolder
from flower_parts import LocalGrid

ROUND, STATE = 3, {"last": 0, "secret": b"a key", "shares": np.arange(4)}


@pytest.fixture
def cut(tmp_path: Path) -> tuple[Path, Any]:
    """Return a run that was cut off in its second round, and a function that resumes a copy of
    it."""
    app, _ = app_of(tmp_path / "app", job(rounds=3, protection=RR))
    grid = LocalGrid(app, tmp_path / "state")
    cut_off(grid, "2")
    with pytest.raises(Killed):
        serve(app, grid, tmp_path / "run")

    def go_on(folder: Path) -> object:
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        shutil.copytree(tmp_path / "state", tmp_path / "again")
        return serve(app, LocalGrid(app, tmp_path / "again"), folder)

    return tmp_path / "run", go_on


def test_rounds_that_were_begun_are_believed_in_good_form_alone(cut: tuple[Path, Any]) -> None:
    run, go_on = cut
    name = "checkpoint/begun"
    said = dict(on_copies(run, name, sealed_edits(run / name), go_on))
    # Another round number or cost has a valid form: no digest without a key can reveal it.
    lies = {"rounds.huge", "loss.epsilon.huge", "release.1.masses.shorter"}
    accepted = {how for how, sentence in said.items() if sentence is None}
    # A resumed run computes anew what it states about a started round.
    assert {how for how in accepted if not how.startswith("stated.")} <= lies
    assert all(
        sentence is not None
        for _, sentence in on_copies(run, name, damaged((run / name).read_bytes()), go_on)
    )
    (run / name).unlink()
    assert "begun is missing: it says which rounds were begun" in str(sentence_of(run, go_on))


@pytest.mark.parametrize("round", [1, 3])
@pytest.mark.parametrize("lost", ["begun", "all of the checkpoint"])
def test_a_run_without_its_started_rounds_does_not_begin_again_uncharged(
    round: int, lost: str, tmp_path: Path
) -> None:
    """Its first checkpoint is due after round 7, so no other file has the charges."""
    settings = job(rounds=8, protection=RR, checkpoint={"every": 7})
    app, _ = app_of(tmp_path / "app", settings)
    grid, run = LocalGrid(app, tmp_path / "state"), tmp_path / "run"
    cut_off(grid, str(round))
    with pytest.raises(Killed):
        serve(app, grid, run)
    why = "begun is missing: it says which rounds were begun"
    if lost == "begun":
        (run / "checkpoint" / "begun").unlink()
    else:
        shutil.rmtree(run / "checkpoint")
        (run / "imports.txt").unlink()
        why = "holds a job file, and no run that could be resumed"
    said = sentence_of(run, lambda folder: serve(app, LocalGrid(app, tmp_path / "state"), folder))
    assert why in str(said)


def test_an_edited_job_of_a_deployed_run_is_refused_by_its_keys(cut: tuple[Path, Any]) -> None:
    run, go_on = cut
    kept = run / "job.yaml"
    kept.write_text(kept.read_text().replace("rounds: 3", "rounds: 4"))
    assert "rounds = 4 where the run has 3" in str(sentence_of(run, go_on))


def state_of(folder: Path) -> tuple[SealedState, RecordDict]:
    shutil.rmtree(folder, ignore_errors=True)
    records = RecordDict()
    state = SealedState(StateFolder(folder), b"job", 1, records)
    state.put(ROUND, STATE)
    return state, records


def test_a_client_without_a_home_folder_is_told_what_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's user often has none."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    for make in (StateFolder.for_keys, StateFolder.for_accounts):
        with pytest.raises(
            DeploymentError, match=r"no home folder.* node configuration, state-fol"
        ):
            make()
        assert make(str(tmp_path / "named")).path == tmp_path / "named"


def test_a_sealed_state_that_was_edited_is_no_state(tmp_path: Path) -> None:
    """Its key is not in the record, so nobody can forge its tag."""
    state, records = state_of(tmp_path / "state")
    (name,) = records
    raw = bytes(records[name]["sealed"])  # type: ignore[arg-type, index]
    others: list[Any] = [data for _, data in damaged(raw)]
    for other in [*others, "text", 3, 1.5, [1, 2]]:
        state, records = state_of(tmp_path / "state")
        records[name] = ConfigRecord({"sealed": other})
        assert state.take(ROUND) is None
    for record in (ConfigRecord({}), ConfigRecord({"other": raw})):
        state, records = state_of(tmp_path / "state")
        records[name] = record
        assert state.take(ROUND) is None
    state, _ = state_of(tmp_path / "state")
    assert state.take(ROUND + 1) is None
    state, _ = state_of(tmp_path / "state")
    assert state.take(ROUND)["secret"] == b"a key"  # type: ignore[index]

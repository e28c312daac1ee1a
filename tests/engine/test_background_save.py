"""A simulation saves a round while it trains the next one, and loses or mixes up nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from test_simulation import job

import fedveil
from fedveil.engine.background_save import BackgroundSave
from fedveil.engine.executors.in_process import InProcess
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.engine.run_state import RunState
from fedveil.engine.simulation import Simulator
from fedveil.errors import RunFolderError, RunStopped

LAST = 3


class Saves:
    """Makes each save wait for the next round, and notes what happens during a save."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wait_s: float) -> None:
        self.opened, self.running = threading.Event(), False
        self.overlapped, self.opened_during, self.applied_during = list[bool](), 0, 0
        write, begin, apply = Checkpoint.write, InProcess.open, RunState.apply

        def slow(checkpoint: Checkpoint, folder: Any) -> None:
            self.running = True
            last = checkpoint.round == LAST
            self.overlapped.append(not last and self.opened.wait(wait_s))
            write(checkpoint, folder)
            self.running = False

        def opening(executor: InProcess, context: Any) -> None:
            self.opened_during += self.running
            self.opened.set()
            begin(executor, context)

        def applying(state: RunState, aggregate: Any) -> int:
            self.applied_during += self.running
            self.opened.clear()
            return apply(state, aggregate)

        monkeypatch.setattr(Checkpoint, "write", slow)
        monkeypatch.setattr(InProcess, "open", opening)
        monkeypatch.setattr(RunState, "apply", applying)


def test_the_next_round_starts_during_a_save_but_changes_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = Saves(monkeypatch, 2.0)
    settings = job(rounds=LAST, model="parts:plain", training={"engine": "loop"})
    run = fedveil.simulate(settings, tmp_path / "run")
    assert saves.overlapped == [True, True, False]
    assert saves.applied_during == 0
    assert len(run.metrics) == LAST


@pytest.mark.parametrize("leaves", [False, True])
def test_a_deployment_and_kept_states_are_saved_first(
    leaves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = Saves(monkeypatch, 0.02)
    training: dict[str, Any] = {"engine": "loop"} | ({} if leaves else {"algorithm": "scaffold"})
    monkeypatch.setattr(Simulator, "reports_leave", leaves)
    fedveil.simulate(job(rounds=LAST, model="parts:plain", training=training), tmp_path / "run")
    assert saves.overlapped == [False] * LAST
    assert saves.opened_during == 0


def test_a_save_that_fails_ends_the_run_with_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Checkpoint.write

    def full(checkpoint: Checkpoint, folder: Any) -> None:
        if checkpoint.round == 2:
            raise RunFolderError("the disk is full")
        write(checkpoint, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", full)
        with pytest.raises(RunStopped, match="the disk is full"):
            fedveil.simulate(job(rounds=5), tmp_path / "run")
    assert len(fedveil.resume(tmp_path / "run").metrics) == 5


def test_the_error_of_a_save_is_raised_once() -> None:
    """A run that ends with it does not end with it again on its way out."""

    def full() -> None:
        raise RunFolderError("the disk is full")

    saving, saved = BackgroundSave(), list[int]()
    saving.start(full)
    with pytest.raises(RunFolderError, match="the disk is full"):
        saving.wait()
    saving.wait()
    saving.start(lambda: saved.append(3))
    saving.wait()
    assert saved == [3]

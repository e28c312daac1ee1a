"""Reports that a second thread makes while the next client is trained."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedveil
from fedveil.engine.executors import in_process
from fedveil.engine.executors.client_side import ClientSide
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout


def job(protection: str) -> Job:
    secure = {"reconstruct_secrets_threshold": 3}
    return Job(
        name="beside",
        rounds=2,
        clients={"number": 7, "fraction": 0.72},
        data={"name": "parts:data"},
        model="parts:plain",
        training={"epochs": 1, "batch_size": 4, "lr": 0.2},
        simulation={"workers": 0},
        protection={"name": protection, "pw_encrypt": secure, "distributed_dp": secure},
    )


def run(
    protection: str, folder: Path, cores: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[bytes, set[str]]:
    """Return the model's bytes, and the names of the threads that made reports."""
    threads, answer = set(), ClientSide.answer

    def noted(self: ClientSide, *given: Any) -> Any:
        threads.add(threading.current_thread().name.split("_")[0])
        return answer(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(in_process.os, "sched_getaffinity", lambda process: set(range(cores)))
        patch.setattr(in_process, "_LONG", 1)
        patch.setattr(ClientSide, "answer", noted)
        made = fedveil.simulate(job(protection), folder)
    return Layout(made.model).vector().tobytes(), threads


@pytest.mark.parametrize("protection", ["pw_encrypt", "distributed_dp", "oue"])
def test_they_change_no_byte(
    protection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, alone = run(protection, tmp_path / "one", 1, monkeypatch)
    two, both = run(protection, tmp_path / "two", 2, monkeypatch)
    assert one == two
    assert alone == {"MainThread"}
    assert both == {"MainThread", "reports"} or both == {"reports"}


def test_a_report_that_is_the_update_needs_no_copy_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("not_encrypt", tmp_path / "run", 2, monkeypatch)[1] == {"MainThread"}


def test_an_error_in_the_other_thread_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: ClientSide, *given: Any) -> Any:
        raise OSError(28, "planted")

    monkeypatch.setattr(ClientSide, "_report", fails)
    with pytest.raises(OSError, match="planted"):
        run("oue", tmp_path / "run", 2, monkeypatch)


@pytest.mark.parametrize("protection", ["pw_encrypt", "dp_encrypt"])
def test_the_training_thread_makes_reports_that_still_wait_at_the_end(
    protection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helped, report = threading.Event(), ClientSide._report

    def in_turn(self: ClientSide, *given: Any) -> Any:
        """Make a report. The other thread makes none before the training thread has made one."""
        if threading.current_thread() is threading.main_thread():
            helped.set()
        assert helped.wait(10)
        return report(self, *given)

    one, _ = run(protection, tmp_path / "one", 1, monkeypatch)
    helped.clear()
    monkeypatch.setattr(in_process, "_WAITING", 100)
    monkeypatch.setattr(ClientSide, "_report", in_turn)
    two, both = run(protection, tmp_path / "two", 2, monkeypatch)
    assert one == two
    assert both == {"MainThread", "reports"}


@pytest.mark.parametrize(
    ("dimension", "plain", "keeps", "cores", "apart"),
    [
        (1 << 20, False, False, 2, True), ((1 << 20) - 1, False, False, 2, False),
        (1 << 20, True, False, 2, False), (1 << 20, False, True, 2, False),
        (1 << 20, False, False, 1, False),
        ((1 << 28) - 1, False, False, 2, True), (1 << 28, False, False, 2, False),
    ],
)  # fmt: skip
def test_only_long_reports_without_a_state_are_made_apart(
    dimension: int, plain: bool, keeps: bool, cores: int, apart: bool
) -> None:
    protection = SimpleNamespace(dimension=dimension, plain_reports=plain)
    side: Any = SimpleNamespace(protection=protection, keeps_state=keeps)
    made = in_process.InProcess(side, cores)
    assert (made._pool is not None) == apart
    made.close()

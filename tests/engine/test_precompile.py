"""A second process compiles the protection's loops, only if needed, and ends with the run."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.base.kernels import HAVE_NUMBA, is_cached
from fedveil.engine import precompile
from fedveil.engine.job_protection import make_protection
from fedveil.engine.precompile import make_one_report, precompiling

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")
LOOPS = """
from fedveil.base.kernels import compiled

@compiled()
def double(values):
    for i in range(len(values)):
        values[i] *= 2
"""


def test_a_loop_is_cached_once_it_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loops_of_a_test.py").write_text(LOOPS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    double = importlib.import_module("loops_of_a_test").double
    assert not is_cached(double)
    double(np.ones(3))
    assert is_cached(double)
    assert is_cached(np.sum)  # nothing to compile


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that were started, on a machine with two cores and no cached loop."""
    processes: list[Any] = []
    start = subprocess.Popen

    def keep(command: list[str], **how: Any) -> Any:
        processes.append(start(command, **how))
        return processes[-1]

    monkeypatch.setattr(precompile.subprocess, "Popen", keep)
    monkeypatch.setattr(precompile, "is_cached", lambda loop: False)
    monkeypatch.setattr(precompile.os, "sched_getaffinity", lambda pid: {3, 5})
    return processes


def job(*settings: str) -> fedveil.Job:
    return fedveil.Job.load(None, ["clients.number=70", *settings])


def test_the_second_process_makes_a_report_of_the_job(started: list[Any]) -> None:
    with precompiling(job("protection=distributed_dp")):
        assert started[0].wait(60) == 0
    assert started[0].args[0] == sys.executable


def test_it_ends_with_the_run(started: list[Any]) -> None:
    with pytest.raises(ZeroDivisionError), precompiling(job("protection=dp_encrypt")):
        raise ZeroDivisionError
    assert started[0].returncode is not None


@pytest.mark.parametrize("what", ["protection", "cores", "cached", "owners"])
def test_no_process_is_started_for_nothing(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    switched = job(f"protection={'signds' if what == 'protection' else 'distributed_dp'}")
    if what == "cores":
        monkeypatch.setattr(precompile.os, "sched_getaffinity", lambda pid: {3})
    if what == "cached":
        monkeypatch.setattr(precompile, "is_cached", lambda loop: True)
    if what == "owners":
        switched = fedveil.Job.load(
            None,
            [
                "clients.number=null",
                "data.split=by_client",
                "data.name=femnist",
                "model=lenet_femnist",
            ],
        )
    with precompiling(switched):
        pass
    assert started == []


@pytest.mark.parametrize("name", ["distributed_dp", "dp_encrypt"])
def test_a_report_calls_the_loop_that_shows_what_is_cached(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedveil.mechanisms import gaussian

    calls = []
    loop = gaussian.sum_of_squares

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return loop(*arguments)

    monkeypatch.setattr(gaussian, "sum_of_squares", counted)
    make_one_report(make_protection(job(f"protection={name}", "simulation.masks=false"), 600))
    assert calls


@pytest.mark.parametrize("way", ["refused", "ended"])
def test_a_run_needs_no_second_process(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It may not start, or it may end before it has read the job."""
    start, runs = precompile.subprocess.Popen, []

    def fail(command: list[str], **how: Any) -> Any:
        if way == "refused":
            raise OSError("no memory for a process")
        process = start([sys.executable, "-c", ""], **how)
        process.wait(60)
        return process

    monkeypatch.setattr(precompile.subprocess, "Popen", fail)
    with precompiling(job("protection=dp_encrypt")):
        runs.append(way)
    assert runs == [way]

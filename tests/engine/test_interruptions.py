"""Runs that are killed, crash or run out of room, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from folders import SUPPORT

TESTS = SUPPORT
JOB = """
name: small
rounds: 20
clients: {number: 8, fraction: 0.5}
data: {name: "parts:data"}
model: parts:suicidal
training: {epochs: 1, batch_size: 5, lr: 0.05}
simulation: {workers: 2}
"""
DEADLINE_S = 120


def start(*arguments: object, before: str = "", **environment: str) -> subprocess.Popen[str]:
    """The command line program in a process group of its own."""
    program = f"{before}\nimport sys\nfrom fedveil.cli import main\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(TESTS), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=DEADLINE_S)
    return process.returncode, errors


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def rounds_of(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def outcome(folder: Path) -> tuple[bytes, list[dict[str, object]]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    timeless = [
        {k: v for k, v in record.items() if not k.startswith("seconds_")} for record in records
    ]
    return (folder / "model.safetensors").read_bytes(), timeless


def workers_of(folder: Path) -> list[int]:
    """The processes that run the worker program for the run in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(folder).encode() in (entry / "environ").read_bytes() and (
                    b"fedveil.engine.executors.worker" in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def holders_of_shared_memory() -> set[int]:
    """The processes that hold a block of the simulator's shared memory."""
    held = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if "memfd:fedveil" in str(descriptor.readlink()):
                held.add(int(descriptor.parts[2]))
        except OSError:
            continue
    return held


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def whole(job: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same job, never interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert finish(start("run", job, "--out", folder))[0] == 0
    return folder


@pytest.mark.parametrize("at", [0, 19])
def test_killed_at_any_moment_it_resumes_to_the_same_bytes(
    at: int, job: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start("run", job, "--out", folder, FEDVEIL_TEST_TAG=str(folder))
    ready = (folder / "job.yaml").exists if at == 0 else lambda: rounds_of(folder) >= at
    wait_for(ready)
    wait_for(lambda: len(workers_of(folder)) == 2)
    group = {process.pid, *workers_of(folder)}
    wait_for(lambda: group <= holders_of_shared_memory())
    os.kill(process.pid, signal.SIGKILL)  # the process alone: its workers must notice
    process.communicate()
    wait_for(lambda: not workers_of(folder))
    assert not group & holders_of_shared_memory()
    code, errors = finish(start("run", "--resume", folder))
    assert code == 0, errors
    assert outcome(folder) == outcome(whole)


def test_killed_in_the_middle_of_writing_the_checkpoint(
    job: Path, whole: Path, tmp_path: Path
) -> None:
    """The process ends between writing a checkpoint's bytes and giving them their name."""
    folder = tmp_path / "run"
    before = """
import os, pathlib, signal
replace, count = pathlib.Path.replace, [0]
def dying(self, target):
    count[0] += "latest" in str(target)
    if count[0] == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
pathlib.Path.replace = dying
"""
    process = start("run", job, "--out", folder, before=before)
    assert finish(process)[0] == -signal.SIGKILL
    assert rounds_of(folder) == 5
    assert (folder / "checkpoint" / "latest.part").exists()
    assert finish(start("run", "--resume", folder))[0] == 0
    assert outcome(folder) == outcome(whole)


def test_ctrl_c_says_how_to_resume_and_exits_130(job: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("run", job, "--out", folder)
    wait_for(lambda: rounds_of(folder) >= 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    code, errors = finish(process)
    assert code == 130
    assert f"interrupted; `fedveil run --resume {folder}` goes on" in errors
    assert "Traceback" not in errors
    assert finish(start("run", "--resume", folder))[0] == 0
    assert outcome(folder) == outcome(whole)


def test_a_worker_that_crashes_ends_the_run_with_a_sentence(
    job: Path, whole: Path, tmp_path: Path
) -> None:
    folder, crash = tmp_path / "run", tmp_path / "crash"
    process = start("run", job, "--out", folder, FEDVEIL_TEST_CRASH=str(crash))
    wait_for(lambda: rounds_of(folder) >= 2)
    crash.touch()
    code, errors = finish(process)
    assert code == 1
    assert "was ended by SIGABRT; `fedveil run --resume" in errors
    assert "Traceback" not in errors
    assert finish(start("run", "--resume", folder))[0] == 0
    assert outcome(folder) == outcome(whole)


def test_a_worker_killed_as_the_system_does_when_memory_runs_out(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("run", job, "--out", folder, FEDVEIL_TEST_TAG=str(folder))
    wait_for(lambda: rounds_of(folder) >= 1)
    os.kill(workers_of(folder)[0], signal.SIGKILL)
    code, errors = finish(process)
    assert code == 1
    assert "SIGKILL, which is what the system does to a process when memory runs out" in errors


def test_a_disk_with_no_more_room_ends_the_run_with_a_sentence(
    job: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    before = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
"""
    code, errors = finish(
        start("run", job, "--out", folder, "--set", "simulation.workers=0", before=before)
    )
    assert code == 1
    assert "cannot be written: File too large" in errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert finish(start("run", "--resume", folder))[0] == 0
    assert outcome(folder) == outcome(whole)

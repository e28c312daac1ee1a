"""Runs that are killed, crash or run out of room, in processes of their own."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import fedveil
import warm_process
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.record.run_folder import RunFolder

#: Resumes a run in this process. A killed run has its own workers.
pytestmark = pytest.mark.usefixtures("warm_workers")
#: One worker for all that does not ask for several: each imports torch anew.
JOB = """
name: small
rounds: 20
clients: {number: 8, fraction: 0.5}
data: {name: "parts:data"}
model: parts:suicidal
training: {epochs: 1, batch_size: 5, lr: 0.05}
simulation: {workers: 1}
record: {page: false}
"""
DEADLINE_S = 120
#: What makes a round take tenths of a second, so that no run is over before its test has acted.
UNHURRIED = {"FEDVEIL_TEST_PAUSE_S": "0.05"}


def start(
    folder: Path, *arguments: object, before: Callable[[], None] | None = None, **environment: str
) -> BaseProcess:
    """A run of the command line program in this folder."""
    words = ("run", *arguments, "--out", folder)
    tag = {"FEDVEIL_TEST_TAG": str(folder), **environment}
    return warm_process.start(words, log_of(folder), before=before, environment=tag)


def log_of(folder: Path) -> Path:
    return folder.with_suffix(".log")


def finish(process: BaseProcess, folder: Path) -> tuple[int | None, str]:
    process.join(DEADLINE_S)
    said = log_of(folder).read_text()
    return process.exitcode, " ".join(said.split())


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


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


def holds_shared_memory(process: int) -> bool:
    """Return True if a process holds a block of the simulator's shared memory."""
    for descriptor in Path(f"/proc/{process}/fd").glob("*"):  # none where it has ended
        with suppress(OSError):  # it closes one just now
            if "memfd:fedveil" in str(descriptor.readlink()):
                return True
    return False


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def whole(job: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same job, never interrupted, and without workers."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    fedveil.simulate(fedveil.Job.load(job, ["simulation.workers=0"]), folder)
    return folder


def stay_after(rounds: int) -> None:
    """Save exactly this many rounds before the process is killed."""
    write = Checkpoint.write

    def staying(self: Checkpoint, folder: RunFolder) -> None:
        write(self, folder)
        if self.round == rounds:
            time.sleep(2 * DEADLINE_S)

    Checkpoint.write = staying  # type: ignore[method-assign]


@pytest.mark.parametrize(("at", "workers"), [(0, 2), (19, 1)])
def test_killed_at_any_moment_it_resumes_to_the_same_bytes(
    at: int, workers: int, job: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    before = partial(stay_after, max(at, 1))
    process = start(folder, job, "--set", f"simulation.workers={workers}", before=before)
    ready = (folder / "job.yaml").exists if at == 0 else lambda: rounds_of(folder) >= at
    wait_for(ready)
    wait_for(lambda: len(workers_of(folder)) == workers)
    assert process.pid is not None
    group = {process.pid, *workers_of(folder)}
    wait_for(lambda: all(map(holds_shared_memory, group)))
    os.kill(process.pid, signal.SIGKILL)  # the process alone: its workers must notice
    process.join()
    wait_for(lambda: not workers_of(folder) and not any(map(holds_shared_memory, group)))
    fedveil.resume(folder)
    assert outcome(folder) == outcome(whole)


def die_at_the_fifth_checkpoint() -> None:
    replace, count = Path.replace, [0]

    def dying(self: Path, target: Path) -> Path:
        count[0] += "latest" in str(target)
        if count[0] == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    Path.replace = dying  # type: ignore[assignment, method-assign]


def test_killed_in_the_middle_of_writing_the_checkpoint(
    job: Path, whole: Path, tmp_path: Path
) -> None:
    """The process ends between writing a checkpoint's bytes and giving them their name."""
    folder = tmp_path / "run"
    alone = ("--set", "simulation.workers=0")
    process = start(folder, job, *alone, before=die_at_the_fifth_checkpoint)
    assert finish(process, folder)[0] == -signal.SIGKILL
    assert rounds_of(folder) == 5
    assert (folder / "checkpoint" / "latest.part").exists()
    fedveil.resume(folder)
    assert outcome(folder) == outcome(whole)


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "interrupted by SIGTERM")],
    ids=["SIGINT", "SIGTERM"],
)
def test_an_interrupted_run_says_how_to_resume(
    number: signal.Signals, how: str, job: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "my run"
    process = start(folder, job, **UNHURRIED)
    wait_for(lambda: rounds_of(folder) >= 2)
    assert process.pid is not None
    os.killpg(process.pid, number)  # as a terminal or `timeout` does: to the workers too
    code, said = finish(process, folder)
    assert code == 128 + number
    assert f"{how}; `fedveil run --resume '{folder}'` resumes" in said
    assert "Traceback" not in said
    fedveil.resume(folder)
    assert outcome(folder) == outcome(whole)


def test_a_worker_that_crashes_ends_the_run_with_a_sentence(
    job: Path, whole: Path, tmp_path: Path
) -> None:
    folder, crash = tmp_path / "run", tmp_path / "crash"
    process = start(folder, job, FEDVEIL_TEST_CRASH=str(crash), **UNHURRIED)
    wait_for(lambda: rounds_of(folder) >= 2)
    crash.touch()
    code, said = finish(process, folder)
    assert code == 1
    assert "was killed by SIGABRT; `fedveil run --resume" in said
    assert "Traceback" not in said
    fedveil.resume(folder)
    assert outcome(folder) == outcome(whole)


def test_a_worker_killed_as_the_system_does_when_memory_runs_out(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, job, **UNHURRIED)
    wait_for(lambda: rounds_of(folder) >= 1)
    os.kill(workers_of(folder)[0], signal.SIGKILL)
    code, said = finish(process, folder)
    assert code == 1
    assert "SIGKILL, probably because the machine ran out of memory" in said


def leave_little_room() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))


def test_a_disk_with_no_more_room_ends_the_run_with_a_sentence(
    job: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(folder, job, "--set", "simulation.workers=0", before=leave_little_room)
    code, said = finish(process, folder)
    assert code == 1
    assert "cannot be written: File too large" in said
    assert "--resume" in said
    assert "Traceback" not in said
    fedveil.resume(folder)
    assert outcome(folder) == outcome(whole)

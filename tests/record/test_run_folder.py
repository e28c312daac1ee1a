"""Every file of a run is whole, and one run writes a folder at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, tzinfo
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from fedveil.base.files import PARTIAL
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.executors.shared_block import SharedBlock
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.errors import MissingExtra, RunFolderError
from fedveil.pages.read_run import read_run
from fedveil.record import recorder as of_recorder
from fedveil.record import run_folder
from fedveil.record.model_file import write_model
from fedveil.record.recorder import Metrics, Recorder, read_whole_lines
from fedveil.record.run_folder import (
    MODEL,
    RunFolder,
    explained,
    in_use,
    temporary_folder,
    uninterrupted,
)
from hostile_files import bounded


def test_a_folder_is_locked_while_it_is_open(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    with pytest.raises(RunFolderError, match="in use by another run"):
        RunFolder.create(tmp_path / "run")
    folder.close()
    RunFolder.create(tmp_path / "run").close()


def test_a_folder_that_holds_anything_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(RunFolderError, match="is not empty") as refused:
        RunFolder.create(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep"
    assert not in_use(tmp_path), refused  # whose traceback would hold a lock that is not released


def test_a_discarded_folder_is_gone_unless_it_holds_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    empty, full = RunFolder.create(None, "job"), RunFolder.create(None, "job")
    (full.path / "traceback.txt").touch()
    assert in_use(empty.path)
    for folder in (empty, full):
        folder.discard()
        assert not in_use(folder.path)
    assert (empty.path.exists(), full.path.exists()) == (False, True)
    (full.path / "traceback.txt").unlink()
    RunFolder.create(full.path).discard()
    assert not Path("runs").exists()
    Path("runs").mkdir()  # this one is the user's own
    RunFolder.create(tmp_path / "elsewhere").discard()
    assert (Path("runs").exists(), Path("elsewhere").exists()) == (True, False)


def test_only_a_runs_folder_is_reopened(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"not a run's folder: it has no job\.yaml"):
        RunFolder.reopen(tmp_path)


@pytest.mark.parametrize("where", ["/proc/nowhere/run", "/dev/null/run"])
def test_a_folder_that_cannot_be_made_is_one_sentence(where: str) -> None:
    with pytest.raises(RunFolderError, match="cannot be written: "):
        RunFolder.create(Path(where))


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path: Path) -> None:
    """A process that may write 4 KiB to any file, as on a disk with no more room."""
    program = f"""
import resource, signal, sys
from pathlib import Path
from fedveil.errors import RunFolderError
from fedveil.record.run_folder import RunFolder
folder = RunFolder.create(Path({str(tmp_path / "run")!r}))
folder.write_atomically("file", b"old")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    folder.write_atomically("file", bytes(100_000))
except RunFolderError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "cannot be written: File too large" in done.stdout
    assert (tmp_path / "run" / "file").read_bytes() == b"old"


class Noon(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Noon:
        return cls(2026, 3, 4, 12, 5, 6, tzinfo=tz)


def test_new_folders_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "datetime", Noon)
    folders = [RunFolder.create(None, "job") for _ in range(3)]
    names = ("job-20260304-120506", "job-20260304-120506-2", "job-20260304-120506-3")
    assert [folder.path for folder in folders] == [Path("runs") / name for name in names]


def test_a_folder_left_by_a_run_killed_in_its_first_instant_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "job.yaml.part").write_text("name")
    (tmp_path / ".lock").touch()
    RunFolder.create(tmp_path).close()


def test_a_temporary_folder_is_gone_at_its_end_or_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_folder() as folder:
        assert folder.parent == tmp_path
        (folder / "file").touch()
    assert not any(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "unmounted"))
    no = "no temporary folder can be created: No such file or directory. Set TMPDIR to a folder"
    with pytest.raises(RunFolderError, match=no), temporary_folder():
        pass


def test_explained_names_the_file(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "file"
    with pytest.raises(RunFolderError, match=r"no/file cannot be written: No such file"):  # noqa: SIM117
        with explained(tmp_path):
            missing.open("w")


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """Whatever started the tests: a shell's background is deaf to them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_interrupts")
def test_an_interrupt_waits_until_the_files_are_whole() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("written")
        steps.append("after")
    assert steps == ["written"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(OSError, match="disk full"), uninterrupted():
        raise OSError("disk full")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_supervisor_waits_too_if_the_program_handles_its_signal() -> None:
    steps = []
    with uninterrupted():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # a script's own choice
    signal.signal(signal.SIGTERM, lambda number, frame: steps.append("ended"))
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            steps.append("written")
        assert steps == ["written", "ended"]
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def checkpoint() -> Checkpoint:
    return Checkpoint(
        round=3,
        metrics_bytes=17,
        metrics_digest="def",
        fingerprint="abc",
        weights=np.arange(5, dtype=np.float32),
        optimizer={"m": np.ones(5)},
        protection={"estimate": 0.5, "phase": "growth"},
        ledger={"rounds": 3},
    )


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    assert Checkpoint.read(folder) is None
    checkpoint().write(folder)
    back = Checkpoint.read(folder)
    assert back is not None
    assert (back.round, back.metrics_bytes, back.fingerprint) == (3, 17, "abc")
    np.testing.assert_array_equal(back.weights, checkpoint().weights)
    np.testing.assert_array_equal(back.optimizer["m"], np.ones(5))
    assert back.protection == checkpoint().protection
    assert back.ledger == checkpoint().ledger


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, at: int) -> None:
    folder = RunFolder.create(tmp_path / "run")
    checkpoint().write(folder)
    path = tmp_path / "run" / "checkpoint" / "latest"
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(RunFolderError, match="is damaged"):
        Checkpoint.read(folder)


def metrics_of(folder: Path) -> list[dict[str, object]]:
    path = folder / "metrics.jsonl"
    return read_whole_lines(path.read_text("utf-8"), path, "fedveil run --resume")


def test_metrics_are_strict_json_and_come_back(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    recorder = Recorder(folder)
    record = {"round": 1, "loss": float("nan"), "epsilon": float("inf"), "rejected": {"late": 2}}
    recorder.record(record)
    kept, digest = recorder.metrics_bytes, recorder.metrics_digest
    recorder.record({"round": 2})
    recorder.close()
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"loss": "nan"' in text
    assert '"epsilon": "inf"' in text
    first, second = metrics_of(tmp_path / "run")
    assert np.isnan(first.pop("loss"))
    assert first == {"round": 1, "epsilon": float("inf"), "rejected": {"late": 2}}
    assert second == {"round": 2}
    again = Recorder(folder, Metrics.vouched(folder, kept, digest))
    assert [r["round"] for r in again.records] == [1]
    again.record({"round": 2, "more": True})
    again.close()
    assert metrics_of(tmp_path / "run")[1] == {"round": 2, "more": True}


def test_records_are_on_disk_when_a_checkpoint_counts_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(RunFolder.create(tmp_path / "run"))
    recorder.record({"round": 1})
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    recorder.sync()
    recorder.close()
    assert synced == [(tmp_path / "run" / "metrics.jsonl").stat().st_ino]


class Board:
    """Stands for TensorBoard's writer."""

    last: Board

    def __init__(self, folder: str, purge_step: int) -> None:
        self.began, self.scalars, self.closed = (folder, purge_step), list[object](), False
        Board.last = self

    def add_scalar(self, *scalar: object) -> None:
        self.scalars.append(scalar)

    def close(self) -> None:
        self.closed = True


def test_tensorboard_gets_each_number_with_its_round_and_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_recorder, "find_board", lambda: Board)
    kept = Metrics(records=[{"round": 1}, {"round": 2}])
    recorder = Recorder(RunFolder.create(tmp_path / "run"), kept, tensorboard=True)
    recorder.record({"round": 3, "loss": 0.25, "unit": "client", "reports": 7, "failed": {"x": 2}})
    assert Board.last.began == (str(tmp_path / "run" / "tensorboard"), 3)
    assert Board.last.scalars == [("loss", 0.25, 3), ("reports", 7, 3)]
    assert not Board.last.closed
    recorder.close()
    assert Board.last.closed


def test_a_missing_tensorboard_is_told_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    sentence = (
        r"^record\.tensorboard needs the package tensorboard: pip install 'fedveil\[trackers\]'"
    )
    with pytest.raises(MissingExtra, match=sentence):
        of_recorder.find_board()


@pytest.mark.parametrize(
    ("size", "content", "sentence"),
    [
        (100, b"{}\n", "it is shorter than its checkpoint says"),
        (3, b"[]\n", "it is not what its checkpoint vouches for"),
        (-1, b"{}\n", "metrics_bytes = -1 is outside"),
    ],
)
def test_metrics_that_no_checkpoint_vouches_for_are_refused(
    size: int, content: bytes, sentence: str, tmp_path: Path
) -> None:
    folder = RunFolder.create(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunFolderError, match=f"metrics.jsonl is damaged: {sentence}"):
        Metrics.vouched(folder, size, hashlib.sha256(b"{}\n").hexdigest())


def test_a_resumed_recorder_knows_its_metrics_by_the_digest_of_all(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    first = Recorder(folder)
    first.record({"round": 1})
    again = Recorder(folder, Metrics.vouched(folder, first.metrics_bytes, first.metrics_digest))
    again.record({"round": 2})
    written = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert again.metrics_digest == hashlib.sha256(written).hexdigest()


def test_a_run_can_go_back_to_the_same_metrics_several_times(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    first = Recorder(folder)
    first.record({"round": 1, "loss": 0.5})
    size, digest = first.metrics_bytes, first.metrics_digest
    first.close()
    kept = Metrics.vouched(folder, size, digest)
    for later, went_back in ((0.25, False), (0.125, True)):
        again = Recorder(folder, kept)
        assert (again.went_back, again.metrics_digest) == (went_back, digest)
        again.record({"round": 2, "loss": later})
        again.close()


def test_shared_arrays_are_one_memory_without_a_name() -> None:
    arrays = {"a": np.arange(7, dtype=np.int64), "b": np.ones((3, 5), np.float32)}
    block = SharedBlock.of(arrays)
    other = SharedBlock(os.dup(block.descriptor), block.spans)
    np.testing.assert_array_equal(other.array("a"), arrays["a"])
    other.array("b")[2, 4] = 7
    assert block.array("b")[2, 4] == 7
    assert all(span.offset % 64 == 0 for span in block.spans.values())
    assert not any("fedveil" in name for name in os.listdir("/dev/shm"))  # noqa: PTH208
    block.close()
    other.close()


# --- a folder that a stranger has made ---


def recorded(folder: RunFolder) -> None:
    Recorder(folder).close()


def locked(folder: RunFolder) -> None:
    RunFolder.reopen(folder.path).close()


def kept(folder: RunFolder) -> None:
    folder.write_atomically("checkpoint/latest", b"mine")


def in_a_party(folder: RunFolder) -> None:
    folder.within("leader")


def clients_states(folder: RunFolder) -> None:
    ClientStates(folder.path)


def board(folder: RunFolder) -> None:
    Recorder(folder, tensorboard=True).close()


@pytest.mark.parametrize(
    ("name", "write"), [("events.log", recorded), ("metrics.jsonl", recorded), (".lock", locked)]
)
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_through_a_link(
    name: str, write: Callable[[RunFolder], None], there: bool, tmp_path: Path
) -> None:
    """Play a folder that was unpacked with a link to a file of its new owner."""
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    (run / "job.yaml").touch()
    (run / name).symlink_to(other)
    if there:
        other.write_bytes(b"the owner's")
    with pytest.raises(
        RunFolderError, match=f"{name} cannot be written: it is a link, and fedveil writes nothing"
    ):
        write(RunFolder(run, None))  # type: ignore[arg-type]
    assert other.exists() is there
    assert not there or other.read_bytes() == b"the owner's"


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("checkpoint", kept),
        ("leader", in_a_party),
        ("clients", clients_states),
        ("tensorboard", board),
    ],
)
def test_no_folder_is_written_through_a_link(
    name: str, write: Callable[[RunFolder], None], tmp_path: Path
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    (run / name).symlink_to(other)
    with pytest.raises(
        RunFolderError, match=f"{name} cannot be written: it is a link, and fedveil writes nothing"
    ):
        write(RunFolder(run, None))  # type: ignore[arg-type]
    assert list(other.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "done"), [("events.log", "read"), ("metrics.jsonl", "written"), (".lock", "written")]
)
def test_a_pipe_in_a_runs_folder_is_not_waited_for(name: str, done: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").touch()
    os.mkfifo(tmp_path / name)
    with bounded():
        assert not in_use(tmp_path)
        with pytest.raises(RunFolderError, match=f"{name} cannot be {done}: it is a named pipe"):
            (locked if name == ".lock" else recorded)(RunFolder(tmp_path, None))  # type: ignore[arg-type]


def test_a_model_is_not_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write the file as safetensors 0.4 does, which opens what is there."""

    def opens(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        path.write_bytes(safetensors.torch.save(tensors, metadata))

    monkeypatch.setattr(safetensors.torch, "save_file", opens)
    folder, other = RunFolder.create(tmp_path / "run"), tmp_path / "other"
    other.write_bytes(b"the owner's")
    (folder.path / f"{MODEL}{PARTIAL}").symlink_to(other)
    write_model(folder, nn.Linear(2, 3))
    folder.close()
    assert other.read_bytes() == b"the owner's"
    assert (folder.path / MODEL).stat().st_size > 0


@pytest.mark.parametrize("line", ["[" * 200_000, '{"a": ' * 200_000, "7" * 5_000, "3", '{"a": 1'])
def test_a_record_that_nests_too_deeply_is_told(line: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").touch()
    for name in ("metrics.jsonl", "attacks.jsonl", "accounts.jsonl"):
        (tmp_path / name).write_text(f"{line}\n")
        with pytest.raises(RunFolderError) as caught:
            read_run(tmp_path)
        assert "\n" not in str(caught.value)
        (tmp_path / name).unlink()


def test_a_recorder_that_lost_rounds_counts_from_its_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    first = Recorder(folder)
    first.record({"round": 1})
    size, digest = first.metrics_bytes, first.metrics_digest
    first.record({"round": 2, "loss": 0.25})
    first.close()
    again = Recorder(folder, Metrics.vouched(folder, size, digest))
    assert (again.went_back, again.metrics_bytes) == (True, size)
    again.close()


def test_a_look_at_a_lock_hinders_no_other_look(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as another process's `in_use`
        assert not in_use(tmp_path)


@pytest.mark.usefixtures("hears_interrupts")
def test_a_thread_and_a_process_without_interrupts_write_whole_files_too() -> None:
    written: list[str] = []

    def write(name: str) -> None:
        with uninterrupted():
            os.kill(os.getpid(), 0 if name == "thread" else signal.SIGINT)
            written.append(name)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(write, "thread").result()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write("process")
    assert written == ["thread", "process"]

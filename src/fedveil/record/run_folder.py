"""A run's folder: one process writes it at a time, and every file in it is whole."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import IO

from fedveil._files import PARTIAL, Pieces, make_inner_folder, open_in_place, write_whole
from fedveil._untrusted import MOST_STREAMED_BYTES, opened
from fedveil.errors import FolderInUse, RunFolderError

JOB = "job.yaml"
IMPORTS = "imports.txt"
METRICS = "metrics.jsonl"
EVENTS = "events.log"
MODEL = "model.safetensors"
CHECKPOINT = "checkpoint"
#: What a model raised before the first round; such a folder holds no run.
TRACEBACK = "traceback.txt"
_LOCK = ".lock"


class RunFolder:
    """The folder of one run, locked while it is open."""

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(
        cls, path: str | Path | None, name: str = "run", command: str | None = "fedveil run"
    ) -> RunFolder:
        """A new folder, or one that is empty; refuses a folder that holds anything.

        Without a path, a new one under runs/ that is named for the run and the time. `command`
        is what goes on with a run, where anything does.
        """
        if path is None:
            path = _new_path(name)
        path = Path(path)
        make_folder(path)
        with explained(path):
            lock = _take_lock(path)
            # A run that was killed in its first instant leaves a lock and a part of a file.
            none = (_LOCK, TRACEBACK)
            if any(e.name not in none and e.suffix != PARTIAL for e in path.iterdir()):
                lock.close()
                others = ""
                if command and (path / JOB).exists():
                    others = f", or go on with that run by `{command} --resume {path}`"
                raise RunFolderError(f"{path} is not empty: name another folder{others}")
            return cls(path, lock)

    @classmethod
    def of_many(cls, path: Path) -> RunFolder:
        """A folder of runs' folders, made where it is not there yet."""
        make_folder(path)
        with explained(path):
            return cls(path, _take_lock(path))

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """The folder of a run that was begun before."""
        job_of(path)
        with explained(path):
            return cls(path, _take_lock(path))

    def within(self, name: str) -> RunFolder:
        """A folder in this one, under the same lock; only this one is closed."""
        path = self.path / name
        with explained(path):
            make_inner_folder(path)
        return RunFolder(path, self._lock)

    def close(self) -> None:
        """Let another process write here."""
        self._lock.close()

    def write_atomically(self, name: str, data: Pieces) -> None:
        """Replace a file as a whole: whoever reads it sees the old bytes or the new."""
        target = self.path / name
        with explained(self.path):
            if target.parent != self.path:
                make_inner_folder(target.parent)
            write_whole(target, data)

    def remove(self, name: str) -> None:
        """Remove a file, where there is one."""
        with explained(self.path):
            (self.path / name).unlink(missing_ok=True)


def in_use(path: Path) -> bool:
    """Whether a process of this machine writes in a run's folder."""
    try:
        with opened(path / _LOCK, MOST_STREAMED_BYTES) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock: it is a copy
        return False
    return False


def job_of(path: Path) -> Path:
    """The job file of a run's folder; raises `RunFolderError` where it is none."""
    return held_in(path, JOB, "a run's folder")


def held_in(path: Path, name: str, what: str) -> Path:
    """The file by which a folder is `what` it is; raises `RunFolderError` where it is not."""
    if (path / name).is_file():
        return path / name
    if not path.exists():
        why = "there is no such folder"
    elif path.is_dir():
        why = f"it has no {name}"
    else:
        why = "it is a file"
        if path.name == name:
            why += f": its folder is {path.parent}"
    raise RunFolderError(f"{path} is not {what}: {why}")


def _new_path(name: str) -> Path:
    """Make a folder under runs/ that nobody else has made."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = Path("runs", f"{name}-{stamp}"), 1
    while True:
        with explained(path), suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
        number += 1
        path = Path("runs", f"{name}-{stamp}-{number}")


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where they are not there yet."""
    with explained(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            file = next((p for p in (path, *path.parents) if p.exists()), path)
            raise RunFolderError(
                f"{path} cannot be written: {file} is a file, not a folder"
            ) from None


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the system says of a full disk or a forbidden folder into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or path} cannot be written: {error.strerror or error}"
        ) from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the files in hand are whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if pending and callable(previous):
            previous(*pending[0])


def _take_lock(path: Path) -> IO[bytes]:
    lock = os.fdopen(open_in_place(path / _LOCK, os.O_RDWR | os.O_CREAT), "rb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise FolderInUse(f"{path} is in use by another run") from None
    return lock

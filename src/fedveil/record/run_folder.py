"""A run's folder: one process at a time writes it, and every file in it is complete."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from types import FrameType
from typing import IO

from fedveil.base import validate
from fedveil.base.files import PARTIAL, Pieces, make_inner_folder, open_in_place, write_whole
from fedveil.base.untrusted import MOST_STREAMED_BYTES, opened
from fedveil.errors import FolderInUse, RunFolderError

JOB = "job.yaml"
IMPORTS = "imports.txt"
METRICS = "metrics.jsonl"
EVENTS = "events.log"
#: The file for a vertical party's sentences that no other party may see.
PRIVATE = "private.log"
MODEL = "model.safetensors"
CHECKPOINT = "checkpoint"
#: The folder of the clients' states, if clients keep one from round to round.
CLIENTS = "clients"
#: The traceback of a model that raised before the first round. Such a folder contains no run.
TRACEBACK = "traceback.txt"
LOCK = ".lock"
#: The signals that ask a program to end: Ctrl-C, a supervisor's, and that of a closed terminal.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The parent folder of runs whose folder is not named.
RUNS = Path("runs")


class RunFolder:
    """The folder of one run. It is locked against other processes until `close`."""

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(
        cls, path: str | Path | None, name: str = "run", command: str | None = "fedveil run"
    ) -> RunFolder:
        """Create and lock a run's folder. An existing folder must be empty.

        If `path` is None, the folder is a new one under runs/, named after `name` and the time. If
        `path` already contains a run, the error says how `command` resumes this run. It says
        nothing about resuming if `command` is None.
        """
        if path is None:
            path = _new_path(name)
        path = validate.path("out", path)
        make_folder(path)
        with explained(path):
            lock = _take_lock(path)
            try:
                _refuse_content(path, command)
            except RunFolderError:
                lock.close()
                raise
            return cls(path, lock)

    @classmethod
    def of_many(cls, path: Path) -> RunFolder:
        """Open and lock a folder that contains the folders of several runs.

        Creates the folder if it is missing.
        """
        make_folder(path)
        with explained(path):
            return cls(path, _take_lock(path))

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Open and lock the folder of an earlier run.

        Raises `RunFolderError` if `path` has no job file, so that it is no run's folder.
        """
        job_of(path)
        with explained(path):
            return cls(path, _take_lock(path))

    def within(self, name: str) -> RunFolder:
        """Return the subfolder `name`. Creates it if it is missing.

        The subfolder shares this folder's lock. Closing the subfolder would release the lock.
        """
        path = self.path / name
        with explained(path):
            make_inner_folder(path)
        return RunFolder(path, self._lock)

    def close(self) -> None:
        """Release the folder's lock, so that another process may write to it."""
        self._lock.close()

    def discard(self) -> None:
        """Release the folder's lock. Also remove the folder if it contains only the lock's file."""
        self.remove(LOCK)
        self.close()
        with suppress(OSError):
            self.path.rmdir()
            if self.path.parent == RUNS:
                RUNS.rmdir()

    def write_atomically(self, name: str, data: Pieces) -> None:
        """Replace the content of file `name` by `data`, atomically.

        A reader of the file sees either its old or its new content.
        """
        target = self.path / name
        with explained(self.path):
            if target.parent != self.path:
                make_inner_folder(target.parent)
            write_whole(target, data)

    def remove(self, name: str) -> None:
        """Remove the file `name` from the folder, if it exists."""
        with explained(self.path):
            (self.path / name).unlink(missing_ok=True)


def refuse_taken(path: Path | None, command: str | None = "fedveil run") -> None:
    """Raise RunFolderError if `path` cannot be a new run's folder. None is always allowed.

    If `path` already contains a run, the error says how `command` resumes this run. It says nothing
    about resuming if `command` is None.
    """
    if path is None:
        return
    file = next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), None)
    if file is not None:
        raise RunFolderError(f"{path} cannot be written: {file} is a file, not a folder")
    _refuse_content(path, command)


def _refuse_content(path: Path, command: str | None) -> None:
    held = path.iterdir() if path.is_dir() else ()
    if not all(_may_be_replaced(entry) for entry in held):
        others = ""
        if command and (path / JOB).exists() and (path / CHECKPOINT).is_dir():
            others = f", or resume that run with `{command} --resume {quote(str(path))}`"
        raise RunFolderError(f"{path} is not empty: name another folder{others}")


def _may_be_replaced(entry: Path) -> bool:
    """Return True if a run that ended before it wrote its job file may have left `entry`."""
    if entry.name == CHECKPOINT and entry.is_dir():
        return all(held.name in (JOB, JOB + PARTIAL) for held in entry.iterdir())
    if entry.name == CLIENTS and entry.is_dir():
        return not any(entry.iterdir())
    return entry.name in (LOCK, TRACEBACK, IMPORTS) or entry.suffix == PARTIAL


def in_use(path: Path) -> bool:
    """Return True if a process on this machine has locked the run's folder `path`."""
    try:
        with opened(path / LOCK, MOST_STREAMED_BYTES) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file: this is a copy
        return False
    return False


def job_of(path: Path) -> Path:
    return held_in(path, JOB, "a run's folder")


def held_in(path: Path, name: str, what: str) -> Path:
    """Return the path of file `name` in folder `path`. Raises `RunFolderError` if it is missing.

    The error says that `path` is not `what`, such as "a run folder".
    """
    if (path / name).is_file():
        return path / name
    if not path.exists():
        why = "there is no such folder"
    elif path.is_dir():
        why = f"it has no {name}"
    else:
        why = "it is a file"
        if path.name == name:
            why += f". Its folder is {path.parent}"
    raise RunFolderError(f"{path} is not {what}: {why}")


def _new_path(name: str) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = RUNS / f"{name}-{stamp}", 1
    while True:
        with explained(path), suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
        number += 1
        path = RUNS / f"{name}-{stamp}-{number}"


def make_folder(path: Path) -> None:
    with explained(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            file = next((p for p in (path, *path.parents) if p.exists()), path)
            raise RunFolderError(
                f"{path} cannot be written: {file} is a file, not a folder"
            ) from None


@contextmanager
def temporary_folder(prefix: str = "fedveil-") -> Iterator[Path]:
    """A context with a new folder below TMPDIR. It is deleted at the end.

    Raises `RunFolderError` if no such folder can be created.
    """
    try:
        made = TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise RunFolderError(
            f"no temporary folder can be created: {error.strerror or error}. Set TMPDIR to a "
            "folder that can be written"
        ) from error
    with made as path:
        yield Path(path)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """A context that turns system errors about `path`, such as a full disk, to `RunFolderError`."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or path} cannot be written: {error.strerror or error}"
        ) from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A context that delays Ctrl-C until its end, so that the files written in it are complete.

    It also delays SIGTERM and SIGHUP, if the program handles them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in ENDING}
    delayed = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in delayed:
        signal.signal(number, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in delayed.items():
            signal.signal(number, handler)
        if pending:
            first, frame = pending[0]
            delayed[signal.Signals(first)](first, frame)


def _take_lock(path: Path) -> IO[bytes]:
    lock = os.fdopen(open_in_place(path / LOCK, os.O_RDWR | os.O_CREAT), "rb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise FolderInUse(f"{path} is in use by another run") from None
    return lock

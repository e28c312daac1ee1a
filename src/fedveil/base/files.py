"""Writes files, and follows no links. No process ever sees a half-written file.

A new file never has wider permissions than requested, not even while it is written.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias

from fedveil.base.untrusted import check_kind

#: The content of a file, whole or in pieces.
Pieces: TypeAlias = bytes | Sequence[bytes | memoryview]

#: The suffix of a file that is not complete yet.
PARTIAL = ".part"


def from_home(path: str | Path) -> Path:
    """Replace `~` or `~user` at the start of a path by the home folder, if the user exists."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def write_new(path: Path, data: Pieces, mode: int = 0o600) -> None:
    """Create a file with the content `data`. Raises FileExistsError if the file exists.

    The file has at most the permissions `mode`.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def write_whole(path: Path, data: Pieces, mode: int = 0o666) -> None:
    """Write or replace a file atomically: a reader sees either all old bytes or all of `data`.

    The file has at most the permissions `mode`.
    """
    partial = path.with_name(path.name + PARTIAL)
    partial.unlink(missing_ok=True)
    write_new(partial, data, mode)
    put_in_place(partial, path)


def put_in_place(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`. After a power failure, `path` is complete or unchanged."""
    sync_to_disk(partial)
    partial.replace(path)
    sync_to_disk(path.parent)


def put_new_in_place(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`. Raises FileExistsError if `path` exists, and changes nothing.

    On a file system without hard links, `path` is empty for a moment.
    """
    sync_to_disk(partial)
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here; an error of another kind recurs in the next line
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        partial.replace(path)
    else:
        partial.unlink()
    sync_to_disk(path.parent)


def open_to_append(path: Path) -> io.FileIO:
    """Open a file to append, or create it. Raises OSError for a symbolic link, pipe or device."""
    return io.FileIO(open_in_place(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write all of `data` to an unbuffered file, whose `write` may write only a part of it."""
    left = memoryview(data)
    while left:  # a partial write reports its error on the next try
        left = left[file.write(left) :]


@contextmanager
def restored_on_failure(file: IO[bytes]) -> Iterator[None]:
    """A context that restores the length of `file` after an OSError, such as of a full disk.

    Otherwise, a part of a record would remain, and the next record would be appended to this part.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        yield
    except OSError:
        with suppress(OSError):
            file.truncate(size)
        raise


def append_whole(file: IO[bytes], data: bytes) -> None:
    """Append `data` to a file from `open_to_append`. After an OSError, the file is unchanged."""
    with restored_on_failure(file):
        write_all(file, data)


def append_synced(file: IO[bytes], data: bytes) -> None:
    """Append `data` to a file from `open_to_append`, and wait until it is on disk.

    After an OSError, the file is unchanged.
    """
    with restored_on_failure(file):
        write_all(file, data)
        os.fsync(file.fileno())


def open_in_place(path: Path, flags: int) -> int:
    """Open a file with the `flags` of `os.open`, to modify it in place. Returns its descriptor.

    Raises OSError for a symbolic link, a pipe or a device.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(path) from None
        if error.errno == errno.ENXIO:
            check_kind(path.stat(), path)
        raise
    try:
        check_kind(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_inner_folder(path: Path) -> None:
    """Create the folder `path`, unless it exists. Raises OSError if `path` is a symbolic link."""
    if path.is_symlink():
        raise _link(path)
    path.mkdir(exist_ok=True)


def refuse_link(path: Path) -> None:
    """Raise OSError if `path` is a symbolic link. The error names a pipe or a device behind it.

    Call it before a file is read that `write_whole` will replace: it would replace the link. Also,
    processes that use the file itself have another lock (`locked`).
    """
    if path.is_symlink():
        with suppress(FileNotFoundError):
            check_kind(path.stat(), path)
        raise _link(path)


def _link(path: Path) -> OSError:
    return OSError(errno.ELOOP, "it is a link, and fedveil writes nothing through links", str(path))


def sync_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of files, is saved on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock on `path` in a `with` block, against other processes that call `locked`.

    The lock is the file `<path>.lock`. It is released if this process dies. Without `wait`, raises
    BlockingIOError if another process has the lock.
    """
    with open_to_append(path.with_name(f"{path.name}.lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield

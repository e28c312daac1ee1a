"""How files are written that must be whole, or secret, from their first instant on."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

#: What a file is to hold, as a whole or in pieces.
Pieces: TypeAlias = bytes | Sequence[bytes | memoryview]

#: What the name of a file that is not whole yet ends with.
PARTIAL = ".part"


def write_new(path: Path, data: Pieces, mode: int = 0o600) -> None:
    """Make a file that is never open to more than `mode` says, or raise FileExistsError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def write_whole(path: Path, data: Pieces, mode: int = 0o666) -> None:
    """Write or replace a file: whoever reads it sees the old bytes or the new."""
    partial = path.with_name(path.name + PARTIAL)
    partial.unlink(missing_ok=True)
    write_new(partial, data, mode)
    put_in_place(partial, path)


def put_in_place(partial: Path, path: Path) -> None:
    """Give a finished file its name, which a power cut takes away neither in whole nor in part."""
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """No other process that asks so changes the file meanwhile; a dead one's lock is freed."""
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""Files that an attacker may have put in place of one of fedveil's."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

#: Long enough for every test here on a loaded machine: a longer one is waiting forever.
_HANGS_S = 30
_MOST_MORE_BYTES = 1 << 31


def pipe(path: Path) -> None:
    """Make a named pipe that nobody writes to."""
    os.mkfifo(path)


def endless(path: Path) -> None:
    """Make a link to a device that never ends."""
    path.symlink_to("/dev/zero")


def vast(path: Path) -> None:
    """Make a file of 8 TiB that takes no space on disk."""
    with path.open("wb") as file:
        file.truncate(1 << 43)


#: A function that makes a hostile file -> the reason in the error.
HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (pipe, "it is a named pipe, not a regular file"),
    "device": (endless, "it is a device, not a regular file"),
    "vast": (vast, "it has 8,796,093,022,208 bytes; the limit is "),
}


@contextmanager
def bounded(most_s: int = _HANGS_S) -> Iterator[None]:
    """Fail instead of waiting forever or exhausting the memory."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it waits forever")

    before = signal.signal(signal.SIGALRM, give_up)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MOST_MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    signal.alarm(most_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)

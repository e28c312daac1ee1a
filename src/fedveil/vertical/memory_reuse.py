"""Where the C library is glibc: what a step frees is kept for the next one."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The largest threshold that glibc takes for blocks that it maps one by one.
_LARGEST_MAPPED = 32 << 20
_LARGEST_KEPT = 1 << 30


def keep_freed_memory() -> None:
    """Let this process keep the memory of tensors that it frees.

    A step allocates the same tensors as the one before. By itself glibc gives blocks of a
    megabyte back to the system and faults them in again page by page, which costs more than
    computing what is in them.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_MAPPED)
        mallopt(_TRIM_THRESHOLD, _LARGEST_KEPT)

"""Makes glibc keep the memory that one step frees, for use in the next step."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The largest threshold that glibc accepts for blocks that it maps individually.
_LARGEST_MAPPED = 32 << 20
_LARGEST_KEPT = 1 << 30


def keep_freed_memory() -> None:
    """Make this process keep the memory of freed tensors. Does nothing without glibc."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_MAPPED)
        mallopt(_TRIM_THRESHOLD, _LARGEST_KEPT)

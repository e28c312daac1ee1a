"""Returns freed memory to the operating system."""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Return all freed memory to the operating system, if the C library can do this (glibc can)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

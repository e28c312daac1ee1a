"""Returns memory that was freed to the operating system."""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Return all memory that was freed, if the C library has a function for it (glibc has).

    By itself it keeps freed memory below anything that is still used, such as a first model's.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

"""Compiled inner loops, with a NumPy path where numba cannot be had."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def _find_njit() -> Any:
    try:
        return importlib.import_module("numba").njit
    except ImportError:  # no wheel for this platform
        return None


_njit = _find_njit()
HAVE_NUMBA = _njit is not None


def compiled(fallback: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile the decorated loop with numba, or use `fallback`, which computes the same bytes."""

    def choose(loop: Callable[P, R]) -> Callable[P, R]:
        if _njit is None:
            return fallback
        try:
            dispatcher: Any = _njit(loop, cache=True, nogil=True)
        except RuntimeError:  # nowhere to keep compiled code: compile it in every process
            dispatcher = _njit(loop, nogil=True)
        dispatcher.numpy_path = fallback  # the tests compare the two
        result: Callable[P, R] = dispatcher
        return result

    return choose


def compiled_fast(loop: Callable[P, R]) -> Callable[P, R]:
    """Compile a floating-point loop, free to fuse and to reorder its sums as a BLAS does.

    Its last bits are those of the machine kind. There is no NumPy path: ask `HAVE_NUMBA` first.
    """
    if _njit is None:
        return loop
    flags = {"contract", "reassoc", "nsz"}
    try:
        result: Callable[P, R] = _njit(loop, cache=True, nogil=True, fastmath=flags)
    except RuntimeError:  # nowhere to keep compiled code: compile it in every process
        result = _njit(loop, nogil=True, fastmath=flags)
    return result

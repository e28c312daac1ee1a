"""Compiled inner loops, with a NumPy path where numba cannot be had."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

Loop = TypeVar("Loop", bound=Callable[..., object])


try:
    _njit: Any = importlib.import_module("numba").njit
except ImportError:  # no wheel for this platform
    _njit = None
HAVE_NUMBA = _njit is not None
_REORDER = {"contract", "reassoc", "nsz"}


def compiled(
    fallback: Callable[..., object] | None = None, *, reorder: bool = False
) -> Callable[[Loop], Loop]:
    """Compile the decorated loop with numba, or use `fallback`, which computes the same bytes.

    Where that is None the loop runs as it is: ask `HAVE_NUMBA` before a long one. With `reorder`
    it is free to fuse and to reorder its sums as a BLAS does: its last bits are those of the
    machine kind.
    """

    def choose(loop: Loop) -> Loop:
        chosen: Any = fallback or loop
        if _njit is not None:
            options: Any = {"nogil": True, "fastmath": _REORDER if reorder else False}
            try:
                chosen = _njit(loop, cache=True, **options)
            except RuntimeError:  # nowhere to keep compiled code: compile it in every process
                chosen = _njit(loop, **options)
            chosen.numpy_path = fallback  # the tests compare the two
        result: Loop = chosen
        return result

    return choose

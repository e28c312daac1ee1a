"""Works on a long vector with two threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: From this many entries on, the work takes much longer than starting a thread.
_LONG = 1 << 22


def by_halves(count: int, work: Callable[[slice], T], multiple: int = 1) -> list[T]:
    """Call `work` with slices that cover the entries 0 to `count` - 1. Returns the results.

    If `count` is large, there are two slices, and two threads work on one half of the entries each.
    Otherwise there is only one slice. The second slice starts at a multiple of `multiple`.
    """
    if count < _LONG:
        return [work(slice(0, count))]
    middle = count // 2 // multiple * multiple
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(work, slice(0, middle))
        second = work(slice(middle, count))
        return [first.result(), second]

"""Works on a long vector with two threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: From this many entries on, the work takes much longer than starting a thread.
_LONG = 1 << 22


def by_halves(count: int, work: Callable[[slice], T]) -> list[T]:
    """Call `work` with a slice of all `count` entries, or with two halves if `count` is large.

    Two threads then work on one half each. Returns the results.
    """
    if count < _LONG:
        return [work(slice(0, count))]
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(work, slice(0, count // 2))
        second = work(slice(count // 2, count))
        return [first.result(), second]

"""Reuses the memory of large arrays that are no longer needed, as between two clients' reports.

The operating system clears memory before a program gets it. Some virtual machines also return freed
memory to their host. So the first use of new memory can take longer than all computations on it.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Uint8s

#: Smaller arrays are cheap to allocate.
_LEAST_BYTES = 1 << 22
#: References to a block that no array uses: by the list, and by the argument of `getrefcount`.
_UNUSED = 2

_blocks: list[Uint8s] = []
_users = 0
_lock = threading.Lock()


def start_reusing() -> None:
    """Let `empty` and `zeros` reuse the memory of large arrays that are no longer used.

    Every call needs a matching call of `stop_reusing`. The last such call frees the unused memory.
    """
    global _users
    with _lock:
        _users += 1


def stop_reusing() -> None:
    global _users
    with _lock:
        _users -= 1
        if not _users:
            _blocks.clear()


def empty(count: int, dtype: npt.DTypeLike) -> Array:
    """Return an uninitialised array of `count` entries, in reused memory if possible."""
    size = count * np.dtype(dtype).itemsize
    if not _users or size < _LEAST_BYTES:
        return np.empty(count, dtype)
    with _lock:
        block = _unused_block(size)
        if block is None:
            block = np.empty(size, np.uint8)
            _blocks.append(block)
    return block[:size].view(dtype)


def zeros(count: int, dtype: npt.DTypeLike) -> Array:
    if not _users or count * np.dtype(dtype).itemsize < _LEAST_BYTES:
        return np.zeros(count, dtype)
    array = empty(count, dtype)
    array.fill(0)
    return array


def _unused_block(size: int) -> Uint8s | None:
    """Return the smallest unused block of `size` to 2 * `size` bytes, or None if there is none."""
    found = None
    for place in range(len(_blocks)):
        length = len(_blocks[place])
        if length < size or sys.getrefcount(_blocks[place]) > _UNUSED:
            continue
        if found is None or length < len(_blocks[found]):
            found = place
    return None if found is None or len(_blocks[found]) > 2 * size else _blocks[found]

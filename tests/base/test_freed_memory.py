"""Memory that was freed is returned, although something above it is still used."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from fedveil.base.freed_memory import return_freed_memory


def held() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc has it")
def test_freed_memory_is_returned() -> None:
    blocks = [bytearray(100_000) for _ in range(400)]
    last, before = bytearray(100_000), held()
    del blocks
    return_freed_memory()
    assert before - held() > 20_000_000
    assert len(last) == 100_000

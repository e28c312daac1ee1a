"""A loop is compiled and runs, wherever its compiled code cannot be kept."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest

from fedveil.base.array_types import Float32s
from fedveil.base.kernels import HAVE_NUMBA, _can_compile, compiled

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")


@pytest.fixture(params=["load", "save"])
def _full_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    def fails(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "load", lambda *arguments: None)
    monkeypatch.setattr(caching.IndexDataCacheFile, "save", lambda *arguments: None)
    monkeypatch.setattr(caching.IndexDataCacheFile, request.param, fails)


@pytest.mark.usefixtures("_full_disk")
def test_a_loop_needs_no_disk_for_its_cache() -> None:
    @compiled()
    def doubled(number: int) -> int:
        return 2 * number

    assert doubled(21) == 42


@pytest.mark.usefixtures("_full_disk")
def test_nor_does_a_native_function() -> None:
    from fedveil.compiled.native import native

    @native("F")
    def nothing(m: Float32s) -> None:
        pass

    assert nothing.address(np.float32)


@pytest.mark.parametrize(("value", "compiles"), [("1", False), ("0", True), ("", True)])
def test_a_debugger_turns_compiling_off(
    monkeypatch: pytest.MonkeyPatch, value: str, compiles: bool
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
    assert _can_compile() is compiles

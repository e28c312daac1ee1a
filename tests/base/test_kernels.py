"""A loop is compiled and runs, wherever its compiled code cannot be kept."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.base import kernels
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


LOOPS = """
from fedveil.base.kernels import compiled

@compiled()
def doubled(values):
    for i in range(len(values)):
        values[i] *= 2
"""


@pytest.fixture
def compile_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Import a module with a loop as in a new process, with a cache of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    (tmp_path / "damaged_loops.py").write_text(LOOPS)

    def fresh() -> Any:
        sys.modules.pop("damaged_loops", None)
        return importlib.import_module("damaged_loops").doubled

    return fresh


def doubles(loop: Any, kind: type[np.generic]) -> bool:
    """Call the loop and return True if it used its cache."""
    values = np.arange(3, dtype=kind)
    loop(values)
    assert values.tolist() == [0, 2, 4]
    return bool(loop.jitted.stats.cache_hits)


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x80\x04."])
@pytest.mark.parametrize("files", ["*.nbi", "*.nbc"])
def test_a_damaged_cache_is_written_again(
    files: str, damage: bytes, tmp_path: Path, compile_again: Callable[[], Any]
) -> None:
    assert not doubles(compile_again(), np.float32)
    assert doubles(compile_again(), np.float32)
    for file in tmp_path.glob(f"__pycache__/{files}"):
        file.write_bytes(damage)
    assert not doubles(compile_again(), np.float32)
    assert doubles(compile_again(), np.float32)


def test_code_for_other_types_is_not_called(
    tmp_path: Path, compile_again: Callable[[], Any]
) -> None:
    """Two processes that fill an empty cache may save both under the same name."""
    loop = compile_again()
    for kind in (np.float32, np.int64):
        assert not doubles(loop, kind)
    first, second = tmp_path.glob("__pycache__/*.nbc")
    first.write_bytes(second.read_bytes())
    again = compile_again()
    for kind in (np.float32, np.int64):
        doubles(again, kind)
    assert again.jitted.stats.cache_misses


def test_processors_share_no_file_of_a_cache(
    tmp_path: Path, compile_again: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for processor in ("old", "new"):
        monkeypatch.setattr(kernels, "_processor", lambda name=processor: name)
        kernels._state_of.cache_clear()
        assert not doubles(compile_again(), np.float32)
        names.append({path.name for path in tmp_path.glob("__pycache__/*doubled*")})
    kernels._state_of.cache_clear()
    assert names[0] < names[1]
    assert len(names[1]) == 2 * len(names[0])


@pytest.mark.parametrize(("value", "compiles"), [("1", False), ("0", True), ("", True)])
def test_a_debugger_turns_compiling_off(
    monkeypatch: pytest.MonkeyPatch, value: str, compiles: bool
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
    assert _can_compile() is compiles


@pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled")
@pytest.mark.parametrize(
    ("asked", "allowed"),
    [({}, False), ({"reorder": True}, {"contract", "reassoc", "nsz"}),
     ({"numbers": True}, {"nnan", "nsz"}),
     ({"reorder": True, "numbers": True}, {"contract", "reassoc", "nsz", "nnan"})],
)  # fmt: skip
def test_a_loop_may_only_be_changed_as_it_allows(asked: dict[str, bool], allowed: object) -> None:
    """A loop that promises nothing keeps its order, and its NaN."""

    def total(values: Float32s) -> float:
        return float(values.sum())

    chosen: Any = compiled(**asked)(total)
    assert chosen._options == {"nogil": True, "fastmath": allowed}


@pytest.mark.parametrize("fallback", [None, max])
def test_without_numba_a_loop_is_its_fallback_or_itself(
    fallback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "HAVE_NUMBA", False)
    assert compiled(fallback)(min) is (fallback or min)

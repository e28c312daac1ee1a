"""Compiles inner loops with numba. A loop may have a NumPy version for machines without numba."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

Loop = TypeVar("Loop", bound=Callable[..., object])


def _can_compile() -> bool:
    """Return True if numba is installed, and NUMBA_DISABLE_JIT does not turn it off."""
    disabled = os.environ.get("NUMBA_DISABLE_JIT", "").strip() or "0"
    return find_spec("numba") is not None and disabled == "0"


#: Some platforms have no wheel of numba.
HAVE_NUMBA = _can_compile()
_REORDER = {"contract", "reassoc", "nsz"}


def compiled(
    fallback: Callable[..., object] | None = None, *, reorder: bool = False, numbers: bool = False
) -> Callable[[Loop], Loop]:
    """Return a decorator that compiles a loop with numba when the loop is first called.

    Without numba, `fallback` is called instead. Its results must equal the loop's bit for bit. If
    there is no `fallback`, the loop runs as plain Python. If `reorder` is True, numba may reorder
    sums, so the last bits depend on the kind of machine. If `numbers` is True, numba may assume
    that the data contain no NaN, and ignore the sign of zero.
    """

    def choose(loop: Loop) -> Loop:
        free = (_REORDER if reorder else set()) | ({"nnan", "nsz"} if numbers else set())
        chosen: Any = _Kernel(loop, fallback, free) if HAVE_NUMBA else fallback or loop
        result: Loop = chosen
        return result

    return choose


class _Kernel:
    """A function that numba compiles at its first call, because numba itself is slow to import.

    `loop` is the Python function, and `fallback` its NumPy version, if there is one. `free` has the
    names of numba's fast-math options.
    """

    def __init__(self, loop: Any, fallback: Callable[..., object] | None, free: set[str]) -> None:
        self._loop = loop
        self._options: Any = {"nogil": True, "fastmath": free or False}
        self.numpy_path = fallback  # the tests compare it with the loop

    def __call__(self, *arguments: Any) -> Any:
        return self.jitted(*arguments)

    @cached_property
    def jitted(self) -> Any:
        """The compiled loop. Loops that it calls are compiled too, because numba needs that."""
        from numba import njit

        loop = with_jitted_names(self._loop)
        try:
            jitted = njit(loop, cache=True, **self._options)
            tolerate_damage(jitted._cache)
        except RuntimeError:  # compiled code cannot be cached here, so every process compiles it
            jitted = njit(loop, **self._options)
        jitted.numpy_path = self.numpy_path
        return jitted


def tolerate_damage(cache: Any) -> None:
    """Patch numba's `cache` of one loop, so that a failure to load or save code is harmless.

    Code that cannot be loaded is compiled again. Code that cannot be saved stays only in memory.
    Possible causes are a full or unreadable disk, and a damaged file. Another is that several
    processes filled an empty cache at the same time: then a file can hold code for the wrong
    argument types.
    """
    load, save = cache.load_overload, cache.save_overload

    def loaded(signature: Any, context: Any) -> Any:
        try:
            found = load(signature, context)
        except OSError:
            return None
        except Exception:  # unpickling a damaged file raises almost anything
            found = None
        else:
            wanted = tuple(getattr(signature, "args", signature))
            if found is None or tuple(found.signature.args) == wanted:
                return found
        with suppress(OSError):
            cache.flush()
        return None

    def saved(*arguments: Any) -> None:
        with suppress(OSError):
            save(*arguments)

    cache.load_overload, cache.save_overload = loaded, saved


def is_cached(loop: Callable[..., object]) -> bool:
    """Return True if the loop's code is in numba's cache on disk, or if it is never compiled."""
    if not isinstance(loop, _Kernel):
        return True
    folder, name = loop.jitted.stats.cache_path, loop.jitted.py_func.__qualname__
    return folder is not None and any(Path(folder).glob(f"*.{name}-*.nbi"))


def with_jitted_names(loop: Any) -> Any:
    """Prepare the Python function `loop` for compilation by numba, and return it.

    If `loop` calls functions that have a compiled version, their names in its module are bound to
    these versions. `loop` gets a new name, by which numba's cache finds it. The name ends with a
    hash of the processor and of the times and sizes of all files in the loop's folder. Without the
    hash, processors that share the cache would overwrite each other's code. A change in another
    file of the folder would also go unnoticed.
    """
    names = loop.__globals__
    for name in loop.__code__.co_names:
        if isinstance(names.get(name), _Kernel):
            names[name] = names[name].jitted
    loop.__qualname__ = f"{loop.__name__}_{_state_of(Path(loop.__code__.co_filename).parent)}"
    return loop


@cache
def _state_of(folder: Path) -> str:
    files = ((path.name, path.stat()) for path in sorted(folder.glob("*.py")))
    stamps = [(name, found.st_mtime_ns, found.st_size) for name, found in files]
    return hashlib.sha256(repr((stamps, _processor())).encode()).hexdigest()[:8]


def _processor() -> object:
    """Return the platform, processor and features for which numba compiles."""
    from numba.core.registry import cpu_target

    return cpu_target.target_context.codegen().magic_tuple()

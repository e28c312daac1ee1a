"""Lets the processes of a test run compile each loop once: the others wait and load it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_LOCKS = Path(tempfile.gettempdir(), f"fedveil-test-compiling-{os.getuid()}")


def compile_once() -> None:
    """Wrap numba's two compilers, if numba is installed."""
    if find_spec("numba") is None:
        return
    from numba.core.ccallback import CFunc
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    def alone(compile: Callable[..., Any], code_of: Callable[[Any], Any]) -> Callable[..., Any]:
        @wraps(compile)
        def locked(self: Any, *arguments: Any) -> Any:
            # A loop that calls another one locks it too, and never the other way round. The lock
            # of this process comes first, so that its threads do not wait for each other's files.
            with global_compiler_lock, _file_lock(code_of(self)):
                return compile(self, *arguments)

        return locked

    Dispatcher.compile = alone(Dispatcher.compile, lambda made: made.py_func)
    CFunc.compile = alone(CFunc.compile, lambda made: made._pyfunc)


@contextmanager
def _file_lock(loop: Any) -> Iterator[None]:
    name = f"{loop.__code__.co_filename} {loop.__qualname__}"
    _LOCKS.mkdir(exist_ok=True)
    with (_LOCKS / hashlib.sha256(name.encode()).hexdigest()[:16]).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Runs a command in a process of its own, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["warm_modules"])


def start(
    arguments: Sequence[object],
    log: Path,
    *,
    before: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> BaseProcess:
    """Run the command line program as the head of a process group, with its output in `log`.

    `before` is a function of a module, called first.
    """
    words = list(map(str, arguments))
    return forked(_run, words, str(log), before, dict(environment or {}))


def forked(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Call a function of a module in a new process."""
    _begin()
    process = _CONTEXT.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def _begin() -> None:
    """Start the process that all others are forked from. It finds modules by its environment."""
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), path]))
    try:
        forkserver.ensure_running()
    finally:
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path


def _run(
    arguments: list[str],
    log: str,
    before: Callable[[], None] | None,
    environment: Mapping[str, str],
) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ |= environment
    sys.argv = ["fedveil", *arguments]
    if before is not None:
        before()
    from fedveil.cli.main import main

    main()

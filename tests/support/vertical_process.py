"""One command of a test in a process of its own, forked where everything is imported already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import sleep
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["vertical_warm"])


def start(
    arguments: list[str],
    log: Path,
    *,
    dies: tuple[str, int] | None = None,
    draws: int | None = None,
) -> BaseProcess:
    """The command line program; `dies` names an event and the time at which it kills itself.

    `draws` is the seed that a party draws for itself, where it does.
    """
    _begin()
    process = _CONTEXT.Process(target=_run, args=(arguments, str(log), dies, draws), daemon=True)
    process.start()
    return process


def _begin() -> None:
    """Start the process that all others are forked from; it finds modules by its environment."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _run(arguments: list[str], log: str, dies: tuple[str, int] | None, draws: int | None) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["fedveil", *arguments]
    if dies is not None:
        _arrange_death(*dies)
    from fedveil.cli import main
    from fedveil.vertical.apart import machine

    if draws is not None:
        machine.drawn_seed = lambda: draws

    main()


def _arrange_death(event: str, time: int) -> None:
    from fedveil.link.link import Link
    from fedveil.vertical.apart.machine import Machine
    from fedveil.vertical.party import Party
    from fedveil.vertical.step_checkpoint import Checkpoint

    kinds: dict[str, Any] = {
        "send": Link, "receive": Link, "write": Checkpoint, "play": Machine, "step": Party
    }  # fmt: skip
    kind = kinds[event]
    method: Callable[..., Any] = getattr(kind, event)
    calls = [0]

    def dying(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == time:
            if event == "play":  # what was agreed is to arrive
                sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **options)

    setattr(kind, event, dying)

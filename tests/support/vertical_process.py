"""One vertical command of a test in a process of its own, which may kill itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import warm_process


def start(arguments: list[str], log: Path, *, dies: tuple[str, int] | None = None) -> BaseProcess:
    """The command line program; `dies` names an event and the time at which it kills itself."""
    before = None if dies is None else partial(_arrange_death, *dies)
    return warm_process.start(arguments, log, before=before)


def _arrange_death(event: str, time: int) -> None:
    from fedveil.link.link import Link
    from fedveil.vertical.step_checkpoint import Checkpoint

    kind: Any = {"send": Link, "receive": Link, "write": Checkpoint}[event]
    method: Callable[..., Any] = getattr(kind, event)
    calls = [0]

    def dying(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == time:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **options)

    setattr(kind, event, dying)

"""Runs a vertical command in a process of its own, which may kill itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import sleep
from typing import Any

import warm_process


def start(
    arguments: list[str],
    log: Path,
    *,
    dies: tuple[str, int] | None = None,
    by: int = signal.SIGKILL,
    draws: int | None = None,
) -> BaseProcess:
    """Run the command line program. `dies` names an event, and the occurrence at which it dies.

    It then sends itself the signal `by`.
    `draws` replaces the seed that a party draws for itself.
    """
    return warm_process.start(arguments, log, before=partial(_arrange, dies, by, draws))


def _arrange(dies: tuple[str, int] | None, by: int, draws: int | None) -> None:
    if dies is not None:
        _arrange_death(*dies, by)
    if draws is not None:
        from fedveil.vertical.remote import machine

        machine.drawn_seed = lambda: draws  # type: ignore[assignment]


def _arrange_death(event: str, time: int, by: int) -> None:
    from fedveil.link.link import Link
    from fedveil.vertical.party import Party
    from fedveil.vertical.remote.machine import Machine
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
            if event == "play":  # so that the messages of the handshake arrive
                sleep(2)
            os.kill(os.getpid(), by)
        return method(*arguments, **options)

    setattr(kind, event, dying)

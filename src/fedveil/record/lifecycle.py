"""The start and the resumption of runs: their messages in the log and in errors."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedveil import __version__
from fedveil.errors import FedveilError, LimitReached, ModelInvalid


def beginning(unit: str, done: int) -> str:
    """Return a phrase for the log: "began", or one such as "went on after round 3".

    In this example, `unit` is "round" and `done` is 3. If `done` is 0, the phrase is "began".
    """
    return f"went on after {unit} {done}" if done else "began"


def log_start(event: Callable[[str], None], what: str, began: float, lines: Iterable[str]) -> None:
    """Log the versions of libraries, the seconds since `began`, and then each of `lines`.

    `event` writes a line to the log. `began` is a value of `time.perf_counter`. `what` describes
    the work of this process.
    """
    event(
        f"{what}: fedveil {__version__}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, torch {torch.__version__}, {platform.machine()}; "
        f"ready after {time.perf_counter() - began:.1f} s"
    )
    for line in lines:
        event(line)


@contextmanager
def how_to_resume(note: Callable[[], str], *ends: type[FedveilError]) -> Iterator[None]:
    """A context that adds the text `note()`, on how to resume a run, to errors raised in its block.

    It adds the text to KeyboardInterrupt and to errors of the types `ends` (default: all errors of
    fedveil). It never adds the text to ModelInvalid, or to LimitReached: a resumed run has the same
    limit.
    """
    kinds: tuple[type[BaseException], ...] = (*(ends or (FedveilError,)), KeyboardInterrupt)
    try:
        yield
    except kinds as end:
        if not isinstance(end, ModelInvalid | LimitReached) and (text := note()):
            end.add_note(text)
        raise

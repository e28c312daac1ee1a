"""Start and resumption of every kind of run, and the messages about them."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedveil import __version__
from fedveil.errors import FedveilError, ModelInvalid


def beginning(unit: str, done: int) -> str:
    """Return text for a log: "began", or "went on after" the number of completed units.

    `unit` is "round" or "step", and `done` the number completed.
    """
    return f"went on after {unit} {done}" if done else "began"


def introduce(event: Callable[[str], None], what: str, began: float, lines: Iterable[str]) -> None:
    """Log versions, the seconds of preparation since `began`, and `lines`.

    `event` logs a line. `what` says what the process runs.
    """
    event(
        f"{what}: fedveil {__version__}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, torch {torch.__version__}, {platform.machine()}; "
        f"ready after {time.perf_counter() - began:.1f} s"
    )
    for line in lines:
        event(line)


@contextmanager
def how_to_resume(
    note: Callable[[], str], ends: type[FedveilError] = FedveilError
) -> Iterator[None]:
    """Add a non-empty `note`, on how to resume, to errors of type `ends`, which end a run early.

    A model that has raised would raise again, so its error gets no note.
    """
    try:
        yield
    except (ends, KeyboardInterrupt) as end:
        if not isinstance(end, ModelInvalid) and (text := note()):
            end.add_note(text)
        raise

"""How a run begins, how it goes on, and what is said of both: alike for every kind of run."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedveil._version import __version__
from fedveil.errors import FedveilError, ModelInvalid


def beginning(unit: str, done: int) -> str:
    """How a run starts that has done so many rounds or steps."""
    return f"went on after {unit} {done}" if done else "began"


def introduce(event: Callable[[str], None], what: str, began: float, lines: Iterable[str]) -> None:
    """The first events of a process; it `began` to get ready at that time of the clock."""
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
    """Let what ends a run early say how it is gone on with; an empty note is left out.

    A model that has raised would raise again: of it nothing is said.
    """
    try:
        yield
    except (ends, KeyboardInterrupt) as end:
        if not isinstance(end, ModelInvalid) and (text := note()):
            end.add_note(text)
        raise

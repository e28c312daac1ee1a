"""How the commands of `fedveil vertical` read a job, speak, and are interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from fedveil.errors import with_notes

if TYPE_CHECKING:
    from fedveil.privacy.ledger import Line
    from fedveil.vertical.vertical_job import VerticalJob

T = TypeVar("T")

_out = Console(soft_wrap=True)


def load(path: Path | None, overrides: Sequence[str] | None) -> VerticalJob:
    """The job in a file with settings on top; functions of the user's are found beside it."""
    from fedveil.vertical.vertical_job import VerticalJob

    if path is not None:
        sys.path.append(str(path.parent.resolve()))
    return VerticalJob.load(path, overrides or [])


def say(text: str) -> None:
    _out.print(text, markup=False, highlight=False)


def remark(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(text, markup=False, highlight=False)


def say_accounts(figures: Mapping[str, Iterable[Line]]) -> None:
    for party, lines in figures.items():
        for figure in lines:
            say(f"{party}: {figure}")


def interruptible(work: Callable[[], T]) -> T:
    """The result of `work`; Ctrl-C says how to go on and exits with 130."""
    try:
        return work()
    except KeyboardInterrupt as end:
        remark(with_notes("interrupted", end))
        raise SystemExit(130) from None

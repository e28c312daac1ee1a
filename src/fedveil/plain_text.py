"""Consoles that print text as it is: what a user has named is neither markup nor an emoji."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

#: Whether what would go to standard output goes to standard error (`json_answer`).
to_stderr = False


def console(**settings: Any) -> Console:
    """A console on which `[red]` and `:train:` stand for themselves."""
    if to_stderr and "file" not in settings:
        settings["stderr"] = True
    return Console(markup=False, emoji=False, highlight=False, **settings)


def say(text: str) -> None:
    """A line on standard output, unbroken."""
    console(soft_wrap=True).print(text)


def document(text: str) -> None:
    """A text that is a command's whole answer, as it is; under `--json` another stands for it."""
    if not to_stderr:
        sys.stdout.write(text)
        sys.stdout.flush()


def remark(text: str, kind: str = "") -> None:
    """A line on standard error; its kind, such as `warning`, in colour before it."""
    shown = console(stderr=True, soft_wrap=True)
    if kind:
        shown.print(f"{kind}:", style=_COLOURS[kind], end=" ")
    shown.print(text)


_COLOURS = {"error": "bold red", "warning": "yellow", "note": "yellow"}

"""Consoles that print text as it is: what a user has named is no markup, emoji or command."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fedveil.base.untrusted import escaped

#: Whether what would go to standard output goes to standard error (`json_answer`).
to_stderr = False


class _EscapingConsole(Console):
    """A console to which no text gives a command; rich's own styles stay.

    Texts are escaped before they are measured, and whatever renders itself when it is printed.
    """

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(escaped(text), **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escaped(text), style, control)


def console(**settings: Any) -> Console:
    """A console on which `[red]` and `:train:` stand for themselves, and commands are escaped."""
    if to_stderr and "file" not in settings:
        settings["stderr"] = True
    return _EscapingConsole(markup=False, emoji=False, highlight=False, **settings)


def say(text: str) -> None:
    """A line on standard output, unbroken."""
    console(soft_wrap=True).print(text)


def document(text: str) -> None:
    """Write a text that is a command's whole answer, escaped on a terminal alone.

    Under `--json` another answer takes its place.
    """
    if not to_stderr:
        sys.stdout.write(escaped(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def remark(text: str, kind: str = "") -> None:
    """A line on standard error; its kind, such as `warning`, in colour before it."""
    shown = console(stderr=True, soft_wrap=True)
    if kind:
        shown.print(f"{kind}:", style=_COLOURS[kind], end=" ")
    shown.print(text)


_COLOURS = {"error": "bold red", "warning": "yellow", "note": "yellow"}

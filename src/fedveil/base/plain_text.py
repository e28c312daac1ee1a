"""Consoles that print text literally: user text is never markup, emoji or an escape sequence."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fedveil.base.untrusted import escaped

#: True if standard output is redirected to standard error (`json_answer`).
to_stderr = False


class _EscapingConsole(Console):
    """A console that prints control characters as plain text. rich's own styles still work."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(escaped(text), **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escaped(text), style, control)


def console(**settings: Any) -> Console:
    """Create a console that prints text literally. `settings` are arguments of rich's `Console`."""
    if to_stderr and "file" not in settings:
        settings["stderr"] = True
    return _EscapingConsole(markup=False, emoji=False, highlight=False, **settings)


def say(text: str) -> None:
    """Print a line on standard output, without wrapping it."""
    console(soft_wrap=True).print(text)


def document(text: str) -> None:
    """Print a command's whole answer on standard output. Prints nothing under `--json`."""
    if not to_stderr:
        sys.stdout.write(escaped(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def remark(text: str, kind: str = "") -> None:
    """Print a line on standard error, after a coloured word `kind` such as `warning`."""
    shown = console(stderr=True, soft_wrap=True)
    if kind:
        shown.print(f"{kind}:", style=_COLOURS[kind], end=" ")
    shown.print(text)


_COLOURS = {"error": "bold red", "warning": "yellow", "note": "yellow"}

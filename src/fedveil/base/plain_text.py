"""Consoles that print text literally: user text is never markup, emoji or an escape sequence."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fedveil.base.untrusted import escaped
from fedveil.errors import OutputLost

#: True if standard output is redirected to standard error (`json_answer`).
to_stderr = False


#: The width of a table in a file or pipe, in characters.
_WIDE = 300


class _EscapingConsole(Console):
    """A rich console that shows control characters in its text as visible escape sequences.

    The styles of rich still work.
    """

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


def wide_console() -> Console:
    """Create a console for tables whose rows should stay whole.

    It is as wide as the terminal. A file or a pipe has no width, so rows are not wrapped there,
    unless the variable COLUMNS sets a width.
    """
    shown = console()
    if shown.is_terminal or "COLUMNS" in os.environ:
        return shown
    return console(width=_WIDE)


def say(text: str) -> None:
    """Print a line on standard output, without wrapping it."""
    console(soft_wrap=True).print(text)


def document(text: str, *, exact: bool = False) -> None:
    """Print `text`, a command's whole answer, on standard output. Prints nothing under `--json`.

    Raises `OutputLost` if standard output is closed. Set `exact` if a program will read the text:
    then also raises `OutputLost` if the output's encoding lacks a character of `text`.
    """
    if to_stderr:
        return
    out = answer_stream()
    if exact:
        try:
            text.encode(out.encoding)
        except UnicodeEncodeError as error:
            character = error.object[error.start]
            raise OutputLost(
                f"standard output cannot show {character!a}: its encoding is {out.encoding}. Set "
                "PYTHONIOENCODING=utf-8"
            ) from None
    out.write(escaped(text) if out.isatty() else text)
    out.flush()


def answer_stream() -> TextIO:
    """Return standard output. Raises `OutputLost` if it is closed."""
    if sys.stdout is None:
        raise OutputLost("standard output is closed, and the answer is written there")
    return sys.stdout


def remark(text: str, kind: str = "") -> None:
    """Print a line on standard error, after a coloured word `kind` such as `warning`."""
    shown = console(stderr=True, soft_wrap=True)
    if kind:
        shown.print(f"{kind}:", style=_COLOURS[kind], end=" ")
    shown.print(text)


_COLOURS = {"error": "bold red", "warning": "yellow", "note": "yellow"}

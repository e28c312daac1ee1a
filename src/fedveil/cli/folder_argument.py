"""Arguments that name a folder to create."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def folder_argument(text: str, name: str = "DIRECTORY") -> Any:
    """Return an argument `name` that is a folder to create. `text` is its help."""
    return typer.Argument(metavar=name, help=text, parser=path)


def path(text: str) -> Path:
    """Return the path `text`. The help shows this function's name as the argument's type."""
    if not text:  # as of a variable that is not set: Path("") is the current folder
        raise typer.BadParameter("an empty text names no folder; write . for the current folder")
    return Path(text)

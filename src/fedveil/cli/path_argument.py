"""Arguments and options of commands that are paths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def path_argument(**more: Any) -> Any:
    """Return an argument that is a path. `more` is as for `typer.Argument`."""
    return typer.Argument(parser=path, **more)


def path_option(*names: str, **more: Any) -> Any:
    """Return an option that is a path. `names` and `more` are as for `typer.Option`."""
    return typer.Option(*names, parser=path, **more)


def path(text: str) -> Path:
    """Return the path `text`. The help shows this function's name as the argument's type."""
    if not text:  # as of a variable that is not set: Path("") is the current folder
        why = "an empty text names no file or folder; write . for the current folder"
        raise typer.BadParameter(why)
    return Path(text)


RunOut = Annotated[
    Path | None, path_option(help="The run folder. Default: a new folder under runs/.")
]

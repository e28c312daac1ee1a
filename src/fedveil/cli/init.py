"""`fedveil init`: writes a job file, with Python code to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedveil.base.plain_text import say
from fedveil.cli.path_argument import path_argument


def init(
    directory: Annotated[
        Path, path_argument(help="The folder to write to. Existing files are never overwritten.")
    ],
    template: Annotated[
        str,
        typer.Option(
            help="The kind of job: image or table (predict a class for each image or row), "
            "text (predict the next letter), regression (predict a number for each row), "
            "own-step (your own training step), vertical (split learning) or flower (your own "
            "Flower app with fedveil's protections)."
        ),
    ] = "table",
) -> object:
    """Create a commented job file, with Python code for the model and for the clients' data."""
    from fedveil.starter import TEMPLATES, write_starter

    wrote = write_starter(directory, template)
    for path in wrote:
        say(f"wrote {path}")
    following = f"cd {shlex.quote(str(directory))} && {TEMPLATES[template].run}"
    say(f"next: {following}")
    return {"wrote": wrote, "next": following}

"""`fedveil data`: the data sets of this machine, and their downloads."""

from __future__ import annotations

from typing import Annotated

import typer

from fedveil.base.plain_text import console, say
from fedveil.cli.json_answer import AsJson, answer, answering
from fedveil.errors import InvalidValue, nearest

app = typer.Typer(help="List and download data sets.", no_args_is_help=True)


@app.command("list")
def list_data(json: AsJson = False) -> None:
    """List the data sets, and show which are on this machine."""
    from rich.table import Table
    from rich.text import Text

    from fedveil.data.datasets import available

    if json:
        facts = ("name", "origin", "shape", "classes", "how")
        answer([{f: getattr(e, f) for f in facts} | {"here": e.here()} for e in available()])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "what", "example", "classes", "here", "how to get it"):
        table.add_column(column, overflow="fold")
    for entry in available():
        shape = "x".join(map(str, entry.shape))
        here = Text("yes", "green") if entry.here() else Text("no")
        table.add_row(entry.name, entry.origin, shape, str(entry.classes), here, entry.how)
    console().print(table)


@app.command()
@answering
def fetch(
    name: Annotated[str, typer.Argument(help="The data set: mnist or fashion_mnist.")],
) -> object:
    """Download a data set into $XDG_CACHE_HOME/fedveil and verify its checksums.

    If XDG_CACHE_HOME is not set, the folder is ~/.cache/fedveil.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from fedveil.data.datasets import available
    from fedveil.data.datasets import fetch as download

    if name not in (names := [entry.name for entry in available()]):
        near = nearest(name, names)
        raise InvalidValue(f"there is no data set {name}{near}; the names are {', '.join(names)}")
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console()) as bars:
        task = bars.add_task(name, total=None, visible=False)

        def show(done: int, total: int | None) -> None:
            bars.update(task, completed=done, total=total, visible=True)

        folder = download(name, progress=show)
    say(f"{name} is in {folder}")
    return {"name": name, "folder": folder}

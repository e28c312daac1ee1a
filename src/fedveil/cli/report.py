"""`fedveil report` and `fedveil watch`: show run folders, on a page or in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedveil.base.plain_text import console, say

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="One or more run folders.")]


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write. Default: report.html, in the run folder if there is only one "
            "run, else in the current folder."
        ),
    ] = None,
) -> object:
    """Write a report page for one or several runs, and each plot as SVG."""
    from fedveil.pages.page_files import write_page
    from fedveil.pages.run_folder_page import PAGE, page_of, page_of_several

    page = page_of(runs[0]) if len(runs) == 1 else page_of_several(runs)
    file = out or (runs[0] / PAGE if len(runs) == 1 else Path(PAGE))
    wrote = list(write_page(page, file))
    for path in wrote:
        say(f"wrote {path}")
    return {"wrote": wrote}


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a copy of it.")],
    patience: Annotated[
        float,
        typer.Option(min=0, help="Stop watching after this many seconds without a new record."),
    ] = 120.0,
) -> object:
    """Follow a run's progress from its folder."""
    from fedveil.cli.watch import watch
    from fedveil.run_display import of_run

    return of_run(watch(run, console(), patience))

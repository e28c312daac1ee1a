"""`fedveil report` and `fedveil watch`: what runs' folders show, on a page and in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedveil.plain_text import console, say

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folders of runs.")]


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the page is written to; without it, report.html: in a single run's folder, "
            "or here."
        ),
    ] = None,
) -> object:
    """Write a page of a run, or of several beside each other, and each of its plots as SVG."""
    from fedveil.pages.kept_page import PAGE, page_of, page_of_several
    from fedveil.pages.written_page import write_page

    page = page_of(runs[0]) if len(runs) == 1 else page_of_several(runs)
    file = out or (runs[0] / PAGE if len(runs) == 1 else Path(PAGE))
    wrote = list(write_page(page, file))
    for path in wrote:
        say(f"wrote {path}")
    return {"wrote": wrote}


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a copy of it.")],
    patience: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds without a word after which a run that nobody writes is given up."
        ),
    ] = 120.0,
) -> object:
    """Show a run as it goes, from its records alone; ends when the run has ended."""
    from fedveil.run_display import of_run
    from fedveil.watching import watch

    return of_run(watch(run, console(), patience))

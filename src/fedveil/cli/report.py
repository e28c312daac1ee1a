"""`fedveil report`, `fedveil runs` and `fedveil watch`: show the content of run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from fedveil.base.plain_text import console, say, wide_console
from fedveil.cli.path_argument import path_argument, path_option

Sort: TypeAlias = Literal["when", "name", "accuracy", "epsilon"]
Runs = Annotated[list[Path], path_argument(metavar="RUN...", help="One or more run folders.")]


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        path_option(
            help="The page to write. The SVG files are written beside it. Default: report.html, in "
            "the run folder if there is only one run, else in the current folder."
        ),
    ] = None,
) -> object:
    """Write a report on one or more runs: an HTML page, and each plot as an SVG file."""
    from fedveil.pages.page_files import write_page
    from fedveil.pages.run_folder_page import PAGE, page_of, page_of_several

    folders = list({run.resolve(): run for run in runs}.values())
    page = page_of(folders[0]) if len(folders) == 1 else page_of_several(folders)
    file = out or (folders[0] / PAGE if len(folders) == 1 else Path(PAGE))
    wrote = list(write_page(page, file))
    for path in wrote:
        say(f"wrote {path}")
    return {"wrote": wrote}


def runs(
    folder: Annotated[
        Path, path_argument(metavar="FOLDER", help="The folder that holds the runs.")
    ] = Path("runs"),
    sort: Annotated[
        Sort,
        typer.Option(
            help="The order: latest first, by name, most accurate first, or smallest epsilon "
            "(privacy cost) first."
        ),
    ] = "when",
    out: Annotated[
        Path | None, path_option(help="Also write the list as a page, such as runs.html.")
    ] = None,
) -> object:
    """List the runs in a folder, with their accuracy and privacy guarantee."""
    from fedveil.pages.page_files import write_page
    from fedveil.pages.run_list import run_list
    from fedveil.pages.run_list_page import as_data, run_list_page, runs_table

    found = run_list(folder, sort)
    if found.runs:
        shown = wide_console()
        shown.print(runs_table(found).within(shown.width, ("time", "when")))
    else:
        say(f"{folder} holds no runs that can be read")
    for damaged in found.damaged:
        say(f"{damaged.name} cannot be read: {damaged.reason}")
    wrote = [] if out is None else list(write_page(run_list_page(found, out), out))
    for path in wrote:
        say(f"wrote {path}")
    return {
        "folder": folder,
        "runs": [as_data(run) for run in found.runs],
        "damaged": [{"folder": one.folder, "reason": one.reason} for one in found.damaged],
        "wrote": wrote,
    }


def watch(
    run: Annotated[
        Path,
        path_argument(
            metavar="RUN",
            help="A run folder, or a copy of one that a program such as rsync keeps up to date.",
        ),
    ],
    patience: Annotated[
        float,
        typer.Option(
            min=0,
            help="Stop watching after this many seconds without a new round or log line, unless a "
            "process on this machine is writing to the folder.",
        ),
    ] = 120.0,
) -> object:
    """Follow a run's progress from its folder.

    Prints each new round or log line until the run ends.
    """
    from fedveil.cli.watch import watch
    from fedveil.run_display import of_run

    return of_run(watch(run, console(), patience))

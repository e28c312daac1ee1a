"""Writes the page in a run's folder: when the run ends, and again on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from fedveil.errors import RunFolderError
from fedveil.pages.page import Page
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.pages.run_page import attack_page, run_page
from fedveil.pages.runs_page import runs_page
from fedveil.pages.vertical_page import is_vertical, parties_of, vertical_page
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import intact

PAGE = "report.html"
#: Prefix of the event that says why a run has no page.
NO_PAGE = f"no {PAGE}: "


def page_of(folder: Path) -> Page:
    """Return the page of the run in a folder. The run may be federated or vertical."""
    run = read_run(folder)
    with intact(folder):
        if run.findings and not (run.records or parties_of(run)):
            return attack_page(run)
        return vertical_page(run) if is_vertical(run) else run_page(run)


def page_of_several(folders: Sequence[Path]) -> Page:
    runs = [read_run(folder) for folder in folders]
    with intact(*folders):
        return runs_page(runs)


def where(folder: Path, run: ReadRun) -> str:
    """Return the path of the page in `folder`, or a text that says that there is none.

    The text gives the reason from the log of `run`, or else a command that writes the page.
    """
    if (folder / PAGE).is_file():
        return str(folder / PAGE)
    return f"none: {run.said(NO_PAGE) or f'`fedveil report {quote(str(folder))}` writes it'}"


def keep_page(folder: RunFolder, event: Callable[[str], None]) -> None:
    """Write the page of a finished run. An error is not raised, but logged with `event`."""
    try:
        folder.write_atomically(PAGE, page_of(folder.path).html().encode(errors="backslashreplace"))
    except Exception as error:
        with suppress(RunFolderError):
            event(f"{NO_PAGE}{error}")

"""A list of runs as a table, and as a page on which the table can be sorted."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from fedveil.base.quantity import quantity
from fedveil.pages.guarantee_text import FOR_A_CLIENT, cell
from fedveil.pages.page import Page, Part, Section
from fedveil.pages.run_folder_page import PAGE
from fedveil.pages.run_list import ListedRun, RunList
from fedveil.pages.run_page import duration
from fedveil.pages.table import Link, Table
from fedveil.record.metric_names import digits, word

_NOTHING = "-"


def runs_table(found: RunList, file: Path | None = None) -> Table:
    """Return a table of the runs. For a page in `file`, each name links to the page of its run."""
    rows = [
        [
            run.name if file is None else _linked(run, file),
            run.protection,
            _quality(run),
            _NOTHING if run.epsilon is None else cell(run.epsilon, run.unit, alone=run.alone),
            _NOTHING if run.began is None else f"{run.began:%Y-%m-%d %H:%M}",
            _NOTHING if run.seconds is None else duration(run.seconds),
            run.state,
        ]
        for run in found.runs
    ]
    return Table(["run", "protection", "accuracy", "epsilon", "when", "time", "state"], rows)


def damaged_table(found: RunList) -> Table:
    """Return a table of the folders that could not be read, with the reasons."""
    return Table(["folder", "why it cannot be read"], [[d.name, d.reason] for d in found.damaged])


def run_list_page(found: RunList, file: Path) -> Page:
    """Return the page of a list of runs. Its links are relative to `file`."""
    number = quantity(len(found.runs), "run")
    lead = (
        f"{number} below this folder. Epsilon is {FOR_A_CLIENT}; of a vertical run it is the "
        "largest finite figure in the parties' accounts, or in one party's if the others are on "
        "other machines. A click on a column's name sorts by it."
    )
    parts: list[Part] = [runs_table(found, file)] if found.runs else ["There are no runs here."]
    sections = [Section("Runs", parts)]
    if found.damaged:
        sections.append(Section("Folders that cannot be read", [damaged_table(found)]))
    return Page(f"Runs in {found.folder.resolve().name}", [lead], sections)


def _quality(run: ListedRun) -> str:
    if run.metric is None or run.quality is None:
        return _NOTHING
    text = digits(run.metric, run.quality)
    return text if run.metric == "accuracy" else f"{word(run.metric)} {text}"


def _linked(run: ListedRun, file: Path) -> str:
    page = run.folder / PAGE
    if not page.is_file():
        return run.name
    return Link(
        run.name, quote(os.path.relpath(page, file.parent).encode(errors="surrogateescape"))
    )


def as_data(run: ListedRun) -> dict[str, object]:
    figure = run.epsilon
    return {
        "folder": run.folder,
        "name": run.name,
        "protection": run.protection,
        "metric": run.metric,
        "quality": run.quality,
        "epsilon": None if figure is None else figure.epsilon,
        "delta": None if figure is None else figure.delta,
        "promise": None if figure is None else figure.promise,
        "unit": run.unit,
        "this_party_only": run.alone,
        "began": None if run.began is None else run.began.isoformat(),
        "seconds": run.seconds,
        "state": run.state,
    }

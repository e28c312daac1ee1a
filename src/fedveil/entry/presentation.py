"""Shows every run to its user: by a page in its folder, and by a display in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedveil.engine.finished_run import Presentation
from fedveil.pages.notebook_view import of_run, plotly
from fedveil.pages.read_run import read_run
from fedveil.pages.run_folder_page import keep_page


def html_of(folder: Path) -> str:
    return of_run(read_run(folder))


def _plot(folder: Path, name: str | None) -> Any:
    return plotly(read_run(folder), name)


PRESENTATION = Presentation(page=keep_page, html=html_of, plot=_plot)

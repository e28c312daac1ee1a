"""A page and its plots as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedveil._files import write_whole
from fedveil.pages.page import Page
from fedveil.pages.svg import svg
from fedveil.record.run_folder import explained


def write_page(page: Page, file: Path) -> Iterator[Path]:
    """Write the page, and each plot as an SVG file beside it, called as the page and the plot.

    Nothing is written where a package for any of it is missing.
    """
    data = {file: page.html().encode()}
    for plot in page.plots:
        data[file.with_name(f"{file.stem}-{plot.name}.svg")] = svg(plot)
    for path, content in data.items():
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        yield path

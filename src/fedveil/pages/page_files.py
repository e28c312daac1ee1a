"""Writes a page and its plots as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fedveil.base.files import write_whole
from fedveil.errors import RunFolderError
from fedveil.pages.page import Page
from fedveil.pages.svg import svg
from fedveil.record.run_folder import explained, make_folder


def write_page(page: Page, file: Path) -> Iterator[Path]:
    """Write the page, and its plots as SVG files beside it. Yields the path of each file.

    If several plots have the same file name, the names of all but the first get a number.
    """
    if file.is_dir():
        raise RunFolderError(f"{file} is a folder. Name a file, such as {file / 'report.html'}")
    data, names = {file: page.html().encode(errors="backslashreplace")}, Counter[str]()
    for plot in page.plots:
        names[plot.file] += 1
        number = f"-{names[plot.file]}" if names[plot.file] > 1 else ""
        data[file.with_name(f"{file.stem}-{plot.file}{number}.svg")] = svg(plot)
    for path, content in data.items():
        make_folder(path.parent)
        with explained(path):
            write_whole(path, content)
        yield path

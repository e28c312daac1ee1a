"""Writes a page and its plots as files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from pathlib import Path

from fedveil.base.files import write_whole
from fedveil.errors import RunFolderError
from fedveil.pages.page import OPENING, Page
from fedveil.pages.svg import svg
from fedveil.record.run_folder import explained, make_folder


def write_page(page: Page, file: Path) -> Iterator[Path]:
    """Write the page, and its plots as SVG files beside it. Yields the path of each file.

    A plot whose file name an earlier plot has gets the first numbered name that is free.
    """
    if file.is_dir():
        raise RunFolderError(f"{file} is a folder. Name a file, such as {file / 'report.html'}")
    _refuse_other(file)
    data = {file: page.html().encode(errors="backslashreplace")}
    for plot in page.plots:
        data[_free(file, plot.file, data)] = svg(plot)
    for path, content in data.items():
        make_folder(path.parent)
        with explained(path):
            write_whole(path, content)
        yield path


def _refuse_other(file: Path) -> None:
    """Raise RunFolderError if `file` has content that is not a page, such as a job."""
    if not file.is_file():
        return
    with explained(file), file.open("rb") as held:
        start = held.read(len(OPENING))
    if start not in (b"", OPENING.encode()):
        raise RunFolderError(
            f"{file} is not a page, and is not overwritten. Name another file, such as "
            f"{file.with_name('report.html')}"
        )


def _free(file: Path, name: str, taken: Collection[Path]) -> Path:
    """Return a path beside the page `file` for the plot `name`, which is not in `taken`."""
    path = file.with_name(f"{file.stem}-{name}.svg")
    numbers = count(2)
    while path in taken:
        path = file.with_name(f"{file.stem}-{name}-{next(numbers)}.svg")
    return path

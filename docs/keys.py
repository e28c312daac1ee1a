"""For mkdocs: the tables that the code knows are written while the site is built."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.structure.pages import Page

from fedveil.federated import job_reference, mindspore_keys
from fedveil.studies.catalog import module
from fedveil.vertical import job_reference as vertical_reference

#: What stands in for the table of a page in its file, with the command that prints it.
TABLE = re.compile(r"<!-- table -->\n.*?<!-- end of table -->\n", re.DOTALL)

#: A page -> what takes the place of its text, given that and the page's folder.
WRITTEN: dict[str, Callable[[str, Path], str]] = {
    "job.md": lambda text, folder: job_reference.reference(),
    "vertical-job.md": lambda text, folder: vertical_reference.reference(),
    "mindspore.md": lambda text, folder: TABLE.sub(lambda _: mindspore_keys.key_table(), text),
    "reproductions/index.md": lambda text, folder: module("page_index").index(folder),
}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    written = WRITTEN.get(page.file.src_uri)
    return written(markdown, Path(str(page.file.abs_src_path)).parent) if written else markdown

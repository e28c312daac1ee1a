"""For mkdocs: writes the tables, the version and the changelog while the site is built."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.structure.pages import Page

from fedveil import __version__
from fedveil.federated import job_reference, mindspore_keys
from fedveil.site import policy_reference
from fedveil.statistics import question_reference
from fedveil.studies.checkout import module
from fedveil.vertical import job_reference as vertical_reference

#: What stands in for the table of a page in its file, with the command that prints it.
TABLE = re.compile(r"<!-- table -->\n.*?<!-- end of table -->\n", re.DOTALL)

#: The changelog is a page of the site, and its links to other pages lead there.
CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


def changelog(folder: Path) -> str:
    """Return the repository's changelog with its links as seen from the folder of the pages."""
    beside = folder.parent / CHANGELOG.name
    text = (beside if beside.is_file() else CHANGELOG).read_text("utf-8")
    return text.replace("](docs/", "](")


#: A page -> what takes the place of its text, given that and the page's folder.
WRITTEN: dict[str, Callable[[str, Path], str]] = {
    "index.md": lambda text, folder: text.replace("{version}", __version__),
    "changelog.md": lambda text, folder: changelog(folder),
    "job.md": lambda text, folder: job_reference.reference(),
    "vertical-job.md": lambda text, folder: vertical_reference.reference(),
    "question-file.md": lambda text, folder: question_reference.reference(),
    "site-policy.md": lambda text, folder: policy_reference.reference(),
    "mindspore.md": lambda text, folder: TABLE.sub(lambda _: mindspore_keys.key_table(), text),
    "reproductions/index.md": lambda text, folder: module("page_index").index(folder),
}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    written = WRITTEN.get(page.file.src_uri)
    return written(markdown, Path(str(page.file.abs_src_path)).parent) if written else markdown

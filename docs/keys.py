"""For mkdocs: the two pages of a job's keys are written while the site is built."""

from __future__ import annotations

from mkdocs.structure.pages import Page

from fedveil.federated import job_reference
from fedveil.vertical import vertical_reference

#: A page -> the module whose `reference` takes its place; the page names its command.
WRITTEN = {"job.md": job_reference, "vertical-job.md": vertical_reference}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    written = WRITTEN.get(page.file.src_uri)
    return written.reference() if written else markdown

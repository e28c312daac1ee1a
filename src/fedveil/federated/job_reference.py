"""The reference of every key of a job, made from the settings themselves.

The site has it as a page (`docs/keys.py`), `fedveil job keys` says it in a terminal.
"""

from __future__ import annotations

from fedveil.federated.job import Job
from fedveil.federated.rules import RULES
from fedveil.settings.reference import page

_INTRODUCTION = """\
# The job

What [a job file](job-files.md) leaves out has the default below.

## Keys
"""


def reference() -> str:
    """The page, in Markdown."""
    return page(_INTRODUCTION, Job, RULES.texts())

"""The reference of all keys of a job, generated from the settings."""

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
    return page(_INTRODUCTION, Job, RULES.texts())

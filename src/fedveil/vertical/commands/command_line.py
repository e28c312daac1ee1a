"""How the commands of `fedveil vertical` read a job, and tell what was spent."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.errors import JobError
from fedveil.plain_text import say
from fedveil.settings.yaml_file import refuse_other_kind

if TYPE_CHECKING:
    from fedveil.privacy.ledger import Line
    from fedveil.vertical.vertical_job import VerticalJob


def load(path: Path | None, overrides: Sequence[str] | None) -> VerticalJob:
    """The job in a file with settings on top; functions of the user's are found beside it."""
    from fedveil.vertical.vertical_job import VerticalJob

    if path is not None:
        sys.path.append(str(path.parent.resolve()))
    try:
        return VerticalJob.load(path, overrides or [])
    except JobError:
        from fedveil.federated.job import Job

        refuse_other_kind(path, VerticalJob, Job, "`fedveil run` trains it")
        raise


def say_accounts(figures: Mapping[str, Iterable[Line]]) -> None:
    for party, lines in figures.items():
        for figure in lines:
            say(f"{party}: {figure}")

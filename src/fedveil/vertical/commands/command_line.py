"""How the commands of `fedveil vertical` read a job, and tell what was spent."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.errors import JobError
from fedveil.plain_text import console, say
from fedveil.settings.yaml_file import refuse_other_kind, refuse_their_vertical

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

        refuse_their_vertical(path)
        refuse_other_kind(path, VerticalJob, Job, "`fedveil run` trains it")
        raise


def say_accounts(figures: Mapping[str, Iterable[Line]]) -> None:
    for party, lines in figures.items():
        for figure in lines:
            say(f"{party}: {figure}")


def say_ending(folder: Path) -> None:
    """Where everything is, and the three answers: how good, what was promised, what next."""
    from fedveil.pages.kept_page import where
    from fedveil.pages.read_run import read_run
    from fedveil.pages.vertical_page import answers, leader_of, parties_of
    from fedveil.run_display import show_answers

    run = read_run(folder)
    say(f"run folder: {folder}")
    say(f"page: {where(folder, leader_of(run, parties_of(run)))}")
    show_answers(console(), answers(run))

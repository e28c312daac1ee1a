"""Reads a job for the commands of `fedveil vertical`, and prints the privacy cost of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fedveil.base.plain_text import console, say
from fedveil.cli.job_arguments import job_file, refuse_question
from fedveil.errors import JobError
from fedveil.settings.yaml_file import refuse_other_kind, refuse_parted, refuse_their_vertical

if TYPE_CHECKING:
    from fedveil.privacy.ledger import Line
    from fedveil.vertical.job import VerticalJob


def load(
    path: Path | None, overrides: Sequence[str] | None, other: str = "Run it with: fedveil run"
) -> VerticalJob:
    """Load the job for split learning in `path` (None: the default job), and apply `overrides`.

    User functions are imported from the file's folder. Raises JobError for an invalid job. If the
    file is a federated job, the error ends with the advice `other` and the path.
    """
    from fedveil.vertical.job import VerticalJob

    refuse_parted(path, overrides)
    if path is not None:
        from fedveil.record.saved_job import look_beside

        look_beside(path)
    try:
        return VerticalJob.load(path, overrides or [])
    except JobError:
        from fedveil.federated.job import Job

        held = job_file(path)
        refuse_their_vertical(held)
        sentence = f"is a federated job. {other} {quote(str(held))}"
        refuse_other_kind(held, VerticalJob, Job.model_fields, sentence)
        if path is not None:
            refuse_question(path)
        raise


def say_accounts(figures: Mapping[str, Iterable[Line]]) -> None:
    for party, lines in figures.items():
        for figure in lines:
            say(f"{party}: {figure}")


def print_results(folder: Path) -> dict[str, object]:
    """Print a run's results, privacy costs and files, and the commands to use next.

    `folder` is the run's folder. Returns the data that `--json` prints.
    """
    from fedveil.pages.read_run import read_run
    from fedveil.run_display import of_run, summary

    run = read_run(folder)
    summary(console(), run)
    return of_run(run)


def of_accounts(figures: Mapping[str, Iterable[Line]]) -> dict[str, object]:
    from fedveil.run_display import of_lines

    return {party: of_lines(lines) for party, lines in figures.items()}

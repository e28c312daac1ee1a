"""Reads the job argument of the commands for federated jobs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil.base.plain_text import remark
from fedveil.cli.path_argument import path_argument
from fedveil.errors import JobError
from fedveil.settings.yaml_file import read, refuse_other_kind, refuse_parted, refuse_their_vertical

if TYPE_CHECKING:
    from fedveil.federated.job import Job

_FILES = (
    "A job (a YAML file that describes a training run; `fedveil init` writes one), or the "
    "configuration file of a MindSpore Federated server"
)
_BUILT_IN = "Default: a built-in job on scikit-learn's images of digits."
JobPath = Annotated[Path | None, path_argument(help=f"{_FILES}. {_BUILT_IN}")]
JobOrQuestions = Annotated[
    Path | None,
    path_argument(help=f"{_FILES}, or a file with questions for `fedveil ask`. {_BUILT_IN}"),
]


def set_option(of: str) -> Any:
    """Return the option `--set KEY=VALUE`, which overrides one key of a file or a job.

    `of` names this file or job in the option's help.
    """
    text = f"KEY=VALUE, such as seed=5: override one key of {of}; may be repeated."
    return typer.Option("--set", help=text)


Overrides = Annotated[list[str] | None, set_option("the job")]

#: Lines that protect a job, the best first.
_PROTECTED = ("protection: distributed_dp", "protection: dp_encrypt")

KeyPart = Annotated[
    str | None,
    typer.Argument(
        metavar="[KEY]", help="A key or a block of keys, such as training. Default: all keys."
    ),
]


def load(
    path: Path | None,
    overrides: list[str] | None,
    other: str = "Run it with: fedveil vertical run",
    default: Path | None = None,
    *,
    runs: bool = False,
) -> Job:
    """Load the job from the file `path` and the `overrides`, and print the job's warnings.

    If `path` is None, loads `default`, or the built-in job if that is None too. A MindSpore
    Federated file is translated, and notes on the translation are printed. Raises JobError if the
    job is vertical. The message ends with the advice `other` and the path. If `runs` is True, a
    note is printed if the job has no protection, unless an override chose that.
    """
    from fedveil.federated.job import Job

    refuse_parted(path, overrides)
    own = path
    if path is None:
        path = default
    else:
        from fedveil.record.saved_job import look_beside

        look_beside(path)
    try:
        job, notes = Job.load_with_notes(path, overrides or [])
    except JobError:
        from fedveil.vertical.job import VerticalJob

        held = job_file(path)
        refuse_their_vertical(held)
        sentence = f"is a vertical job. {other} {quote(str(held))}"
        refuse_other_kind(held, Job, VerticalJob.model_fields, sentence)
        if path is not None:
            refuse_question(path)
        raise
    asked = any("not_encrypt" in text for text in overrides or ())
    if runs and job.protection.name == "not_encrypt" and not asked:
        remarks("note", [_unprotected(job, own)])
    remarks("note", notes)
    remarks("warning", job.warnings)
    return job


def job_file(path: Path | None) -> Path | None:
    """Return the path of the job file in the folder `path`, or `path` if it has no job file."""
    from fedveil.record.run_folder import JOB

    return path / JOB if path is not None and (path / JOB).is_file() else path


def is_question(path: Path) -> bool:
    """Return True if a file is a question file (for `fedveil ask`) and not a job."""
    return "questions" in read(path)


def refuse_question(path: Path) -> None:
    """Raise `JobError` with the right command if `path` is a question file and not a job."""
    if is_question(path):
        raise JobError([f"{path} asks questions. Run it with: fedveil ask {quote(str(path))}"])


def _unprotected(job: Job, path: Path | None) -> str:
    """Return the notice that a job has no protection, and how to add a protection."""
    said = "nothing is protected: the server sees every client's update"
    line = next(filter(partial(_valid, job), _PROTECTED), None)
    if line is None:
        return f"{said}; docs/which-switch.md helps to choose a protection"
    if path is None:
        return f"{said}. To protect it, add `--set {line.replace(': ', '=')}`"
    compared = f"`fedveil budget {quote(str(path))} --try` compares all protections for this job"
    return f"{said}. To protect it, write `{line}` in {path}; {compared}"


def _valid(job: Job, line: str) -> bool:
    """Return True if the job is still valid after the setting in `line`, such as `rounds: 3`."""
    key, _, value = line.partition(": ")
    try:
        type(job).read(job.model_dump(exclude_unset=True), [f"{key}={value}"])
    except JobError:
        return False
    return True


def job_of_run(folder: Path, overrides: list[str] | None) -> Job:
    """Load the job in a run's `folder`, with `overrides`. Raises JobError for a vertical run."""
    from fedveil.federated.job import Job
    from fedveil.record.run_folder import job_of

    path = job_of(folder)
    try:
        return Job.load(path, overrides or [])
    except JobError:
        from fedveil.vertical.job import VerticalJob

        resume = "is a vertical job. Resume its run with: fedveil vertical run --resume "
        refuse_other_kind(path, Job, VerticalJob.model_fields, resume + quote(str(folder)))
        raise


def remarks(kind: str, texts: Iterable[str]) -> None:
    for text in texts:
        remark(text, kind)

"""The runs of a study, one folder each. Missing runs are trained, existing ones are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedveil.errors import FedveilError, OutputLost, RunFolderError
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.record.recorder import Record
from fedveil.record.run_folder import JOB, MODEL


def other_than(job: Job, folder: Path) -> list[str]:
    """Return the settings that differ between `job` and the job of the run in `folder`.

    The number of clients is ignored if the run itself determined it from the data.
    """
    if not (folder / JOB).is_file():
        return []
    begun = Job.load(folder / JOB)
    if job.clients.number is None and begun.clients.number is not None:
        job = job.with_clients(begun.clients.number)
    return job.changes(begun)


def refuse_other(path: Path, job: Job) -> None:
    """Raise an error if the folder `path` holds a run of a different job."""
    refuse_changed(path, other_than(job, path))


def refuse_changed(path: Path, changes: Sequence[str]) -> None:
    """Raise an error if the job has changed since the run in `path` began. It lists `changes`."""
    if changes:
        raise RunFolderError(
            f"{path} was begun with another job: {'; '.join(changes)}: put that back, or name "
            f"another folder"
        )


@contextmanager
def resumed_by(command: str) -> Iterator[None]:
    """Context manager: adds a note to errors that says that `command` resumes the study.

    A KeyboardInterrupt and an OutputLost always get the note. Another `FedveilError` gets it only
    if it already has notes, which say how to resume a single run. The note replaces all earlier
    ones.
    """
    try:
        yield
    except (FedveilError, KeyboardInterrupt) as end:
        if isinstance(end, KeyboardInterrupt | OutputLost) or hasattr(end, "__notes__"):
            end.__notes__ = [f"`{command}` resumes from here"]
        raise


def has_finished(folder: Path) -> bool:
    """Return True if `folder` holds a run that has ended and saved all its results."""
    return (folder / MODEL).is_file() and read_run(folder).finished


def ended_run(job: Job, folder: Path, progress: Callable[[Record], None] | None = None) -> ReadRun:
    """Return the finished run of `job` in `folder`. Starts or resumes it if necessary.

    `progress` is called with each round's record.
    """
    from fedveil.entry.simulation import resume, simulate

    if not (folder / JOB).is_file():
        simulate(job, folder, progress=progress)
    elif not has_finished(folder):
        resume(folder, progress=progress)
    return read_run(folder)


def first_round(run: ReadRun, key: str, reached: Callable[[float], bool]) -> int | None:
    """Return the first round whose metric `key` satisfies `reached`, or None."""
    return next((n for n, value in zip(*run.figures(key), strict=True) if reached(value)), None)

"""A run in a given folder: started, resumed, or read if it has finished."""

from __future__ import annotations

from pathlib import Path

from fedveil.engine.federation import Progress
from fedveil.entry.simulation import resume, simulate
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.record.run_folder import JOB, MODEL


def other_than(job: Job, folder: Path) -> list[str]:
    """Return the settings in which `job` differs from the job of the run in `folder`, if any.

    If that run found its number of clients in its data, this number is no difference.
    """
    if not (folder / JOB).is_file():
        return []
    begun = Job.load(folder / JOB)
    if job.clients.number is None and begun.clients.number is not None:
        job = job.with_clients(begun.clients.number)
    return job.changes(begun)


def ended_run(job: Job, folder: Path, progress: Progress | None = None) -> ReadRun:
    """Return the finished run of `job` in `folder`. Starts or resumes the run if necessary."""
    if not (folder / JOB).is_file():
        simulate(job, folder, progress=progress)
    elif not (folder / MODEL).is_file():
        resume(folder, progress=progress)
    return read_run(folder)

"""One of many runs, in a folder of its own: begun, gone on with, or read where it has ended."""

from __future__ import annotations

from pathlib import Path

from fedveil.engine.federation import Progress
from fedveil.engine.simulation import resume, simulate
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.record.run_folder import JOB, MODEL


def other_than(job: Job, folder: Path) -> list[str]:
    """What another job the run in a folder was begun with has otherwise; nothing where none was.

    The number of clients that a run has found in its data is not another one.
    """
    if not (folder / JOB).is_file():
        return []
    begun = Job.load(folder / JOB)
    if job.clients.number is None and begun.clients.number is not None:
        job = job.with_clients(begun.clients.number)
    return job.changes(begun)


def ended_run(job: Job, folder: Path, progress: Progress | None = None) -> ReadRun:
    """The run of a job in a folder, once it has ended."""
    if not (folder / JOB).is_file():
        simulate(job, folder, progress=progress)
    elif not (folder / MODEL).is_file():
        resume(folder, progress=progress)
    return read_run(folder)

"""Runs of a study, one folder each. A missing run is trained, an existing one is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fedveil.errors import FedveilError, RunFolderError
from fedveil.federated.job import Job
from fedveil.pages.plot import Curve
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.pages.table import Table
from fedveil.record.recorder import Record
from fedveil.record.run_folder import JOB, MODEL
from fedveil.studies.experiment import Tell

#: A noisy run's accuracy is the mean of this many of its last tests.
LAST = 5

Runs = Mapping[str, ReadRun]


@dataclass(frozen=True)
class Arm:
    """A run of an experiment. `name` is that of its folder and of its curve."""

    name: str
    job: Job


def trained(folder: Path, arms: Sequence[Arm], tell: Tell) -> Runs:
    """Return every arm's finished run, by the arm's name."""
    runs = {}
    for number, arm in enumerate(arms, 1):
        path = folder / arm.name
        refuse_other(path, arm.job)
        if not (path / MODEL).is_file():
            tell(f"run {number} of {len(arms)}: {arm.name}")
        runs[arm.name] = _ended(path, arm.job)
    return runs


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


def refuse_other(path: Path, job: Job) -> None:
    """Raise an error if a different job's run is in the folder `path`."""
    refuse_changed(path, other_than(job, path))


def refuse_changed(path: Path, changes: Sequence[str]) -> None:
    """Raise an error if there are `changes` between the job and that of the run in `path`."""
    if changes:
        raise RunFolderError(
            f"{path} was begun with another job: {'; '.join(changes)}: put that back, or name "
            f"another folder"
        )


@contextmanager
def resumed_by(command: str) -> Iterator[None]:
    """If the block ends early, name the `command` that resumes the whole study, not only one
    run.
    """
    try:
        yield
    except (FedveilError, KeyboardInterrupt) as end:
        if isinstance(end, KeyboardInterrupt) or hasattr(end, "__notes__"):
            end.__notes__ = [f"`{command}` goes on from here"]
        raise


def _ended(path: Path, job: Job) -> ReadRun:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small products; workers share the load
    try:
        return ended_run(job, path)
    finally:
        torch.set_num_threads(threads)


def ended_run(job: Job, folder: Path, progress: Callable[[Record], None] | None = None) -> ReadRun:
    """Return the finished run of `job` in `folder`. Starts or resumes the run if necessary."""
    from fedveil.entry.simulation import resume, simulate

    if not (folder / JOB).is_file():
        simulate(job, folder, progress=progress)
    elif not (folder / MODEL).is_file():
        resume(folder, progress=progress)
    return read_run(folder)


def accuracy(run: ReadRun) -> float:
    """Return the run's final accuracy: the mean of its last tests."""
    last = run.figures("accuracy")[1][-LAST:]
    return sum(last) / len(last)


def mean_accuracy(run: ReadRun) -> float:
    """Return the mean accuracy over all tests. It is larger for a run that learns faster."""
    values = run.figures("accuracy")[1]
    return sum(values) / len(values)


def first_round(run: ReadRun, key: str, reached: Callable[[float], bool]) -> int | None:
    """Return the first round in which `reached` is True for the metric `key`, or None."""
    return next((n for n, value in zip(*run.figures(key), strict=True) if reached(value)), None)


def curve(name: str, run: ReadRun, key: str = "accuracy", *, dashed: bool = False) -> Curve:
    """Return the run's metric `key` by round, as a curve called `name`."""
    protection = run.job["protection"]["name"]
    return Curve(name, *run.figures(key), dashed=dashed, protection=protection)


def falls(values: Sequence[float], slack: float) -> bool:
    """Return True if the last value is below the first, and no single rise exceeds `slack`."""
    return values[-1] < values[0] and all(
        after <= before + slack for before, after in pairwise(values)
    )


def listed(values: Sequence[float], places: int = 3) -> str:
    """Format numbers with `places` decimal places, in order."""
    return ", ".join(f"{value:.{places}f}" if math.isfinite(value) else "never" for value in values)


def settings(source: Mapping[str, object], job: Job) -> Table:
    """Return a table of the source's settings that differ from the job's.

    Its caption names the settings that do not differ.
    """
    data = job.model_dump()
    same, rows = [], []
    for key, value in source.items():
        here: object = data
        for part in key.split("."):
            here = here[part]  # type: ignore[index]
        if here == value:
            same.append(f"`{key}` {value}")
        else:
            rows.append((f"`{key}`", str(value), str(here)))
    return Table(("key", "the source", "here"), rows, f"As in the source: {', '.join(same)}.")

"""The runs of an experiment, and the metrics that are read from them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.experiment import NewPart, Tell
from experiments.published_runs import PublishedRuns
from fedveil.errors import FedveilError, RunFolderError
from fedveil.federated.job import Job
from fedveil.pages.plot import Curve
from fedveil.pages.read_run import ReadRun
from fedveil.pages.table import Table
from fedveil.record.run_folder import JOB, MODEL
from fedveil.studies.several_runs import ended_run, has_finished, other_than, refuse_other

#: A noisy run's accuracy is the mean of this many of its last tests.
LAST = 5
#: The file in a copied run's folder that names the folder it was copied from.
COPIED = "copied-from.txt"

Runs = Mapping[str, ReadRun]


@dataclass(frozen=True)
class Arm:
    """A run of an experiment. Its folder and its curve are called `name`."""

    name: str
    job: Job


def trained(folder: Path, arms: Sequence[Arm], tell: Tell) -> Runs:
    """Finish the run of every arm in `folder`, and return the runs by the arms' names.

    If another experiment's folder beside `folder` has a finished run of the same job, that run is
    copied. Published runs are read, if `folder` has their file.
    """
    runs, published = {}, PublishedRuns.of(folder)
    for number, arm in enumerate(arms, 1):
        path = folder / arm.name
        refuse_other(path, arm.job)
        line = f"run {number} of {len(arms)}: {arm.name}"
        read = published.find(arm.name, arm.job)
        if read:
            tell(f"{line}, from the published curves")
            runs[arm.name] = read
            continue
        if not has_finished(path):
            same = None if path.exists() else _finished_beside(folder, arm.job)
            if same:
                tell(f"{line}, copied from {same}")
                _copy(same, path)
            else:
                tell(NewPart(line))
        runs[arm.name] = _ended(path, arm.job)
    return runs


def _finished_beside(folder: Path, job: Job) -> Path | None:
    """Return the folder of a finished run of `job` in another experiment's folder, or None."""
    beside = folder.absolute().parent.glob(f"*/[!.]*/{MODEL}")  # `_copy` leaves .NAME if killed
    finished = sorted(found.parent for found in beside)
    return next((path for path in finished if _is_run_of(job, path)), None)


def _is_run_of(job: Job, path: Path) -> bool:
    try:
        return (path / JOB).is_file() and not other_than(job, path) and has_finished(path)
    except FedveilError:
        return False  # a job file that this version cannot read


def _copy(run: Path, path: Path) -> None:
    """Copy a run's folder to `path`, which exists only once everything is copied."""
    unfinished = path.with_name(f".{path.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        shutil.copytree(run, unfinished)
    except shutil.Error as error:  # a list of files, each with its reason
        raise RunFolderError(f"{run} cannot be copied to {path}: {error.args[0][0][2]}") from None
    (unfinished / COPIED).write_text(f"{run}\n", "utf-8")
    unfinished.rename(path)


def _ended(path: Path, job: Job) -> ReadRun:
    import torch

    threads = torch.get_num_threads()
    if not job.simulation.workers:
        torch.set_num_threads(1)  # small products
    try:
        return ended_run(job, path)
    finally:
        torch.set_num_threads(threads)


def accuracy(run: ReadRun) -> float:
    last = run.figures("accuracy")[1][-LAST:]
    return sum(last) / len(last)


def mean_accuracy(run: ReadRun) -> float:
    """Return the mean accuracy over all tests. It is larger for a run that learns faster."""
    values = run.figures("accuracy")[1]
    return sum(values) / len(values)


def curve(name: str, run: ReadRun, key: str = "accuracy", *, dashed: bool = False) -> Curve:
    """Return the run's metric `key` by round, as a curve called `name`."""
    protection = run.job["protection"]["name"]
    return Curve(name, *run.figures(key), dashed=dashed, protection=protection)


def listed(values: Sequence[float], places: int = 3) -> str:
    """Format numbers with `places` decimal places, in order."""
    return ", ".join(f"{value:.{places}f}" if math.isfinite(value) else "never" for value in values)


def settings(source: Mapping[str, object], job: Job) -> Table:
    """Return a table of the source's settings that differ from the job's.

    The caption names the settings that are equal.
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

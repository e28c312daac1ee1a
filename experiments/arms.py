"""The runs of an experiment, and the figures that are read off them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from experiments.experiment import Tell
from fedveil.federated.job import Job
from fedveil.pages.plot import Curve
from fedveil.pages.read_run import ReadRun
from fedveil.pages.table import Table
from fedveil.record.run_folder import MODEL
from fedveil.studies.several_runs import ended_run, refuse_other

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


def _ended(path: Path, job: Job) -> ReadRun:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small products; workers share the load
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


def falls(values: Sequence[float], slack: float) -> bool:
    """Return True if the last value is below the first and no single rise exceeds `slack`."""
    return values[-1] < values[0] and all(
        after <= before + slack for before, after in pairwise(values)
    )


def listed(values: Sequence[float], places: int = 3) -> str:
    """Format numbers with `places` decimal places, in order."""
    return ", ".join(f"{value:.{places}f}" if math.isfinite(value) else "never" for value in values)


def settings(source: Mapping[str, object], job: Job) -> Table:
    """Return a table of the source's settings that differ from the job's. Its caption names the
    others."""
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

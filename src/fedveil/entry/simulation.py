"""Simulates a job and shows the run: in the notebook's cell while it runs, and on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from fedveil.base import validate
from fedveil.engine.callbacks import Callback
from fedveil.engine.cluster.ray_cluster import need_ray
from fedveil.engine.federation import Progress
from fedveil.engine.finished_run import Run as Run
from fedveil.engine.simulation import Simulator
from fedveil.engine.start import start
from fedveil.entry.presentation import PRESENTATION
from fedveil.federated.blocks import HERE
from fedveil.federated.job import Job
from fedveil.pages.notebook_view import LiveView, in_notebook
from fedveil.record.run_folder import RunFolder
from fedveil.record.saved_job import reopen


def simulate(
    job: Job | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    starting: Callable[[str], None] | None = None,
    callbacks: Iterable[Callback] = (),
) -> Run:
    """Run a job on this machine, or on the cluster that `simulation.on` names.

    `job` may also be the path of a job's file, or the keys of a job. `out` is the run's folder
    (default: a new one under runs/). `progress` is called with every round's record, and `warn`
    with warnings at the start, which also go to the event log. `starting` is called with a
    description of each preparation for the first round. `callbacks` run in addition to the job's
    `record.callbacks`. In a notebook, a run without `progress` shows its rounds and curves in the
    cell.

        >>> from tempfile import TemporaryDirectory
        >>> import fedveil
        >>> settings = ["rounds=2", "clients.number=30", "model=logistic", "simulation.workers=0"]
        >>> job = fedveil.Job.load(None, settings)
        >>> with TemporaryDirectory() as folder:
        ...     run = fedveil.simulate(job, f"{folder}/run")
        >>> [record["round"] for record in run.metrics]
        [1, 2]
    """
    job = Job.of(job)
    with ExitStack() as stack:
        open_folder = partial(RunFolder.create, out, job.name)
        return _run(job, open_folder, stack, progress, warn, starting, callbacks)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    on: str | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    starting: Callable[[str], None] | None = None,
    callbacks: Iterable[Callback] = (),
) -> Run:
    """Resume an interrupted run after its last complete round.

    The run's own job file is used. An edited file is refused. `rounds` is a new, larger number of
    rounds. `on` is a new place to train the clients, as in `simulation.on`. All other arguments are
    as in `simulate`. `progress`, unlike `callbacks`, is first called with the earlier rounds'
    records. With seeded randomness the run ends with the same bytes as without the interruption.

        >>> from tempfile import TemporaryDirectory
        >>> import fedveil
        >>> settings = ["rounds=2", "clients.number=30", "model=logistic", "simulation.workers=0"]
        >>> job = fedveil.Job.load(None, settings)
        >>> with TemporaryDirectory() as folder:
        ...     run = fedveil.simulate(job, f"{folder}/run")
        ...     run = fedveil.resume(run.folder, rounds=3)
        >>> len(run.metrics)
        3
    """

    def load(path: Path) -> Job:
        job = Job.load(path)
        job = job if on is None else job.trained_on(on)
        return job if rounds is None else job.with_rounds(rounds)

    with ExitStack() as stack:
        opened, job = reopen(folder, load, stack)
        return _run(job, lambda: opened, stack, progress, warn, starting, callbacks)


def _run(
    job: Job,
    open_folder: Callable[[], RunFolder],
    stack: ExitStack,
    progress: Progress | None,
    warn: Callable[[str], None] | None,
    starting: Callable[[str], None] | None,
    callbacks: Iterable[Callback],
) -> Run:
    validate.functions(progress=progress, warn=warn, starting=starting)
    if job.simulation.on != HERE:
        need_ray()  # before the folder of a new run is made
    progress, warn = _watched(job, progress, warn)
    begun = start(
        job,
        Simulator(starting),
        open_folder,
        stack,
        warn=warn,
        callbacks=callbacks,
        presentation=PRESENTATION,
    )
    return begun.run(progress)


def _watched(
    job: Job, progress: Progress | None, warn: Callable[[str], None] | None
) -> tuple[Progress | None, Callable[[str], None] | None]:
    if progress is not None or not in_notebook():
        return progress, warn
    view = LiveView(job.model_dump())
    return view, warn or view.warn

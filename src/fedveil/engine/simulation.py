"""The simulator: a whole federation on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.data.datasets import Dataset
from fedveil.data.partition import Partition
from fedveil.engine.assembly import (
    ModelShape,
    make_client_side,
    make_client_sides,
    make_model,
    make_partition,
    make_protection,
    make_trainer,
    worker_count,
)
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.in_process import InProcess
from fedveil.engine.executors.pool import WorkerPool
from fedveil.engine.executors.threads import Threads
from fedveil.engine.faults import Faulty
from fedveil.engine.federation import Engine, Federation, Progress
from fedveil.engine.federation import Run as Run
from fedveil.engine.trial import try_out
from fedveil.federated.job import Job
from fedveil.learning.trained_part import TrainedPart
from fedveil.protections.base import Protection
from fedveil.record.kept_job import reopen
from fedveil.record.run_folder import RunFolder


def simulate(
    job: Job,
    out: str | Path | None = None,
    *,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Run:
    """Run a job on this machine.

    `out` is the run's folder (a new one under runs/ without it). `progress` is called with every
    round's record, `warn` with what the start of the run finds amiss; its events say so too.
    """
    with ExitStack() as stack:
        open_folder = partial(RunFolder.create, out, job.name)
        return Federation(job, Simulator(), open_folder, stack, warn).run(progress)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Run:
    """Go on with a run that ended early, from its last complete round.

    Its own job decides everything, and one that was edited is refused; `rounds` gives the run
    more of them. With seeded randomness it ends with the bytes that it would have ended with if
    nothing had happened. `progress` is called with the old records first.
    """

    def load(path: Path) -> Job:
        job = Job.load(path)
        return job if rounds is None else job.with_rounds(rounds)

    with ExitStack() as stack:
        opened, job = reopen(folder, load, stack)
        return Federation(job, Simulator(), lambda: opened, stack, warn).run(progress)


class Simulator(Engine):
    """Plays all clients on this machine: each has the part of the data that the split gives it."""

    how_to_resume = "`fedveil run --resume {folder}` goes on from the last complete round"
    reports_leave = False

    def __init__(self) -> None:
        self._dataset: Dataset
        self._partition: Partition

    def settle(self, job: Job, dataset: Dataset) -> Job:
        """Deal the examples; as many clients as the data has owners, where the job leaves it."""
        self._dataset = dataset
        self._partition = make_partition(job, dataset)
        return job if job.clients.number is not None else job.with_clients(self._partition.clients)

    def check(self, job: Job, shape: ModelShape) -> None:
        """Make a trainer once."""
        make_trainer(job, make_model(job, shape))

    def try_out(self, job: Job, shape: ModelShape, folder: RunFolder) -> None:
        """With some client's examples."""
        try_out(job, shape, self._dataset, self._partition, folder)

    def protection(self, job: Job, dimension: int) -> Protection:
        """The keys come from the job's seed."""
        return make_protection(job, dimension)

    def identify(self) -> Iterable[npt.NDArray[Any]]:
        """The training examples, and whose they are."""
        train, split = self._dataset.train, self._partition
        return (train.x, train.y, split.indices, split.offsets)

    def describe(self) -> Iterable[str]:
        """The sizes of the clients' parts."""
        yield f"{self._dataset.name}: {self._partition.summary(self._dataset.train.y)}"

    def start(
        self, job: Job, shape: ModelShape, protection: Protection, event: Callable[[str], None]
    ) -> Executor:
        """Start the workers: threads where clients train in native code, otherwise processes."""
        if not job.simulation.masks:
            event("what secure aggregation masks is added without masks (simulation.masks = false)")
        return Faulty(self._executor(job, shape, protection.dimension), job, protection)

    def _executor(self, job: Job, shape: ModelShape, dimension: int) -> Executor:
        train, split = self._dataset.train, self._partition
        seen = TrainedPart.of(make_model(job, shape)).seen(train.x, job.training.device)
        data = ClientsData(seen, train.y, split.indices, split.offsets)
        model = np.empty(dimension, np.float32)
        sides = make_client_sides(job, shape, data, model)
        if sides:
            return Threads(sides)
        workers = worker_count(job)
        if workers == 0:
            return InProcess(make_client_side(job, shape, data, model))
        pool = WorkerPool(workers, dimension, data)
        try:
            pool.start(job, shape)
        except BaseException:
            pool.close()
            raise
        return pool

"""Starts the executor that suits a job's clients on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedveil.base import own_code
from fedveil.engine.assembly import (
    ModelShape,
    make_client_side,
    make_model,
    make_trainer,
    worker_count,
)
from fedveil.engine.executors.client_side import ClientsData, ClientSide, Examples
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.in_process import InProcess
from fedveil.engine.executors.pool import WorkerPool
from fedveil.engine.executors.shards import Shards
from fedveil.engine.executors.threads import Threads
from fedveil.federated.job import Job
from fedveil.learning.own_layers import whole
from fedveil.learning.trainer import Trainer

#: With fewer parameters, a client spends most of its time in Python, where threads only wait for
#: each other: `auto` then takes one, or processes for a run of many trainings, which are worth
#: their start.
_LEAST_FOR_THREADS = 20_000
_LEAST_FOR_PROCESSES = 15_000


def start_locally(
    job: Job,
    shape: ModelShape,
    data: ClientsData | Shards,
    dimension: int,
    folder: Path,
    *,
    pack: Callable[[], bytes],
    starting: Callable[[str], None],
    event: Callable[[str], None],
    cores: int | None = None,
) -> Executor:
    """Return threads if clients train in native code, otherwise worker processes.

    Clients train in this process if there are no workers. `pack` returns the objects of the calling
    script for workers (`own_code.packed`). `cores` is the number of cores to use (default: all).
    `starting` is called with each step's name, and `event` logs a line.
    """
    model = np.empty(job.training.sent_length(dimension), np.float32)
    sides = make_client_sides(job, shape, data, model, starting, cores)
    if sides:
        return Threads(sides)
    workers = worker_count(job, cores)
    try:
        own = pack() if workers else b""
    except Exception as error:  # pickling a script's objects may raise anything
        workers, why = 0, own_code.described(error)
        event(f"clients train in the calling process: workers cannot get its script: {why}")
    if workers == 0:
        compile_training(job, shape, data, starting)
        return InProcess(make_client_side(job, shape, data, model, folder))
    arrays = data.as_arrays(job.clients.number or 0) if isinstance(data, Shards) else data
    pool = WorkerPool(workers, len(model), arrays)
    try:
        compile_training(job, shape, data, starting)  # the workers import PyTorch in the meantime
        starting(f"starting {workers} worker processes")
        pool.start(
            job,
            shape,
            folder,
            own,
            lambda ready, of: starting(f"worker processes: {ready} of {of} are ready"),
        )
    except BaseException:
        pool.close()
        raise
    return pool


def make_client_sides(
    job: Job,
    shape: ModelShape,
    data: Examples,
    model: npt.NDArray[np.float32],
    starting: Callable[[str], None],
    cores: int | None = None,
) -> list[ClientSide]:
    """Return one client side per thread if training runs in native code, otherwise nothing.

    All share `model`, the array of global weights. `starting` is called with each step's name.
    `cores` is the number of cores to use (default: all).
    """
    first = make_trainer(job, whole(make_model(job, shape)), shape.example_shape)
    if not first.native:
        return []
    count, always = worker_count(job, cores), job.training.lr_schedule == "constant"
    if job.simulation.workers == "auto" and len(model) < _LEAST_FOR_THREADS:
        if count > 1 and job.rounds * job.clients_per_round >= _LEAST_FOR_PROCESSES:
            return []
        count = min(count, 1)
    if not (count and always) or job.keeps_state or not _compile(first, data, starting):
        return []
    trainers = [first, *(first.beside() for _ in range(count - 1))]
    return [make_client_side(job, shape, data, model, trainer=each) for each in trainers]


def compile_training(
    job: Job, shape: ModelShape, data: Examples, starting: Callable[[str], None]
) -> None:
    """Compile the training's native code, if it has any, so that it is in the cache."""
    trainer = make_trainer(job, whole(make_model(job, shape)), shape.example_shape)
    if trainer.native:
        _compile(trainer, data, starting)


def _compile(trainer: Trainer, data: Examples, starting: Callable[[str], None]) -> bool:
    starting("compiling the training code, which is cached for later runs")
    return trainer.compile(data.x.shape[1:])

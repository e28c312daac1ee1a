"""Starts the executor of a job on this machine: threads, worker processes, or neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedveil.base import own_code
from fedveil.engine.assembly import (
    ModelShape,
    fork_count,
    make_client_side,
    make_client_sides,
    worker_count,
)
from fedveil.engine.cluster.shards import Shards
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.in_process import InProcess
from fedveil.engine.executors.pool import WorkerPool
from fedveil.engine.executors.threads import Threads
from fedveil.engine.executors.worker import main as serve
from fedveil.engine.precompile import make_one_report
from fedveil.federated.job import Job


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
    """Return an executor: threads if clients train in native code, otherwise worker processes.

    If the job allows no workers, clients train in this process. `dimension` is the number of
    entries of an update, and `folder` the run's folder. `pack` returns the user's own functions and
    classes that workers need. `cores` is the number of cores to use (default: all). `starting` is
    called with the name of each step before the first round, and `event` logs a line.
    """
    model = np.empty(job.training.sent_length(dimension), np.float32)
    sides = make_client_sides(job, shape, data, model, starting, cores)
    forks = fork_count(job) if len(sides) == 1 and cores is None else 0
    if sides and forks < 2:
        return Threads(sides)
    workers = forks or worker_count(job, cores)
    if forks and job.protection.position.loop is not None and not job.simulation.masks:
        make_one_report(sides[0].protection)  # forks share all code that this process has compiled
    try:
        own = pack() if workers and not forks else b""
    except Exception as error:  # pickling a script's objects may raise anything
        workers, why = 0, own_code.described(error)
        event(f"clients train in the calling process: workers cannot get its script: {why}")
    if workers == 0:
        return InProcess(make_client_side(job, shape, data, model, folder), cores)
    arrays = data.as_arrays(job.clients.number or 0) if isinstance(data, Shards) else data
    pool = WorkerPool(workers, len(model), arrays, serve if forks else None)
    try:
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

"""The engine of a deployed job, which exchanges the messages of a round over Flower's grid.

The run's records are in a folder on the server. After a restart, the server resumes from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid

from fedveil.base.message import check_carried, encoded_bytes
from fedveil.data.datasets import Dataset
from fedveil.engine.assembly import ModelShape
from fedveil.engine.dry_run import batches_of_the_test, try_out
from fedveil.engine.engine import Engine
from fedveil.engine.executors.executor import Executor
from fedveil.engine.job_protection import Deployed, job_digest, make_protection
from fedveil.engine.run_records import several_inputs
from fedveil.errors import DeploymentError, FolderInUse
from fedveil.federated.job import Job
from fedveil.flower.job.app_folder import server_roster
from fedveil.flower.job.grid_executor import GridExecutor
from fedveil.flower.job.saved_states import run_name
from fedveil.flower.records import check_report
from fedveil.protections.base import Protection
from fedveil.record.recorder import DEPLOYED
from fedveil.record.run_folder import JOB, RunFolder
from fedveil.record.saved_job import reopen

#: Key of the run configuration that names the run folder.
FOLDER = "folder"
#: Seconds to wait until the last process of a killed server has released the run folder.
_LET_GO_S = 60.0


def run_path(job: Job, named: object = None) -> Path:
    """Return the run's folder: `named` or, by default, a folder named after the job.

    The default is the same after a restart of the server.
    """
    if named:
        return Path(str(named))
    return Path("runs", f"{job.name}-{job_digest(job).hex()[:8]}")


def open_folder(path: Path, job: Job) -> RunFolder:
    """Create the run's folder, or open it to resume the run.

    Raises `DeploymentError` if the folder holds the run of a different job.
    """
    end = time.monotonic() + _LET_GO_S
    while True:
        try:
            if not (path / JOB).is_file():
                return RunFolder.create(path)
            with ExitStack() as stack:
                folder, own = reopen(path, Job.load, stack)
                if changes := job.changes(own):
                    raise DeploymentError(
                        f"{path} holds the run of another job: {'; '.join(changes)}: name another "
                        f"folder, flwr run --run-config 'folder=\"...\"'"
                    )
                stack.pop_all()
                return folder
        except FolderInUse:
            if time.monotonic() > end:
                raise
            time.sleep(1)


class FlowerEngine(Engine):
    """The engine whose clients are Flower's SuperNodes. The server has only test examples."""

    how_to_resume = "`flwr run` of the same app resumes after the last complete round in {folder}"
    reports_leave = True

    def __init__(self, grid: Grid, app: Path) -> None:
        self._dataset: Dataset
        self._own_layers: bool
        self._on_a_node: int
        self._grid = grid
        self._app = app

    def settle(self, job: Job, dataset: Dataset) -> Job:
        """Return the job unchanged, because a deployed job states its number of clients.

        Stores the test examples (all of `dataset`) and two settings for `try_out` and `describe`.
        """
        self._dataset, self._own_layers = dataset, bool(job.clients.own_layers)
        self._on_a_node = job.deployment.clients_per_node
        return job

    def try_out(self, job: Job, shape: ModelShape, folder: RunFolder) -> None:
        batches = batches_of_the_test(job, self._dataset)
        try_out(job, shape, self._dataset, batches, folder)

    def protection(self, job: Job, dimension: int) -> Protection:
        """Return the job's protection, with the clients' own keys instead of keys from the seed.

        Raises an error if the model or a report is too long for Flower to carry, or if clients sign
        and the app's roster names no keys.
        """
        roster = server_roster(self._app, job.protection)
        protection = make_protection(job, dimension, Deployed(roster))
        weights = np.empty(job.training.sent_length(dimension), np.float32)
        check_carried(f"a model of {len(weights):,} numbers", encoded_bytes({"weights": weights}))
        check_report(protection)
        return protection

    def describe(self) -> Iterable[str]:
        yield f"{DEPLOYED}; their reasons, warnings and times stay with them"
        yield from several_inputs(self._dataset.example_shape)
        if self._on_a_node > 1:
            yield (
                f"up to {self._on_a_node} clients share a node: its operator has the data and the "
                f"updates of all of them, so the promise to a client holds against everybody else"
            )
        if self._own_layers:
            yield "figures are those of the layers that all begin with: clients' own stay with them"

    def start(
        self,
        job: Job,
        shape: ModelShape,
        protection: Protection,
        folder: Path,
        event: Callable[[str], None],
    ) -> Executor:
        name = run_name(folder) if job.keeps_state else ""
        return GridExecutor(self._grid, job, shape, protection, event, name)

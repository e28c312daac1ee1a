"""The engine that simulates all clients, on one machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from fedveil.base import own_code
from fedveil.data.datasets import Dataset
from fedveil.data.lone_records import described
from fedveil.data.partition import Partition
from fedveil.engine.assembly import (
    ModelShape,
    make_model,
    make_protection,
    make_shares,
    make_trainer,
    trainer_name,
)
from fedveil.engine.client_evaluation import HeldOut
from fedveil.engine.cluster.start import start_on_a_cluster
from fedveil.engine.dry_run import batches_of, batches_of_the_test, try_out
from fedveil.engine.engine import Engine
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.local import start_locally
from fedveil.engine.faults import Faulty
from fedveil.engine.run_records import several_inputs
from fedveil.federated.blocks import HERE
from fedveil.federated.job import Job
from fedveil.learning.own_layers import whole
from fedveil.learning.trained_part import TrainedPart
from fedveil.protections.base import Protection
from fedveil.record.run_folder import RunFolder

#: The number of batches that each machine of a cluster trains before the first round.
_CHECKED_BATCHES = 3


class Simulator(Engine):
    """An engine that simulates all clients and their data, on this machine or on a cluster.

    Preparing the first round takes several steps. Before each step, `starting` is called with a
    description of the step, such as "trying a batch".
    """

    how_to_resume = "`fedveil run --resume {folder}` resumes after the last complete round"
    reports_leave = False

    def __init__(self, starting: Callable[[str], None] | None = None) -> None:
        self._starting = starting or (lambda what: None)
        self._dataset: Dataset
        self._partition: Partition
        self._tested: Partition | None

    def settle(self, job: Job, dataset: Dataset) -> Job:
        """Split the examples among the clients. Returns the job with the number of clients set."""
        self._starting("distributing the examples among the clients")
        self._dataset = dataset
        self._partition, self._tested = make_shares(job, dataset)
        return job if job.clients.number is not None else job.with_clients(self._partition.clients)

    def check_trainer(self, job: Job, shape: ModelShape) -> str:
        model = whole(make_model(job, shape))
        return trainer_name(make_trainer(job, model, shape.example_shape))

    def try_out(self, job: Job, shape: ModelShape, folder: RunFolder) -> None:
        self._starting("trying a batch")
        if self._dataset.train.usable is None:
            batches = batches_of(job, self._dataset, self._partition)
        else:  # no training example may decide whether the run starts
            batches = batches_of_the_test(job, self._dataset)
        try_out(job, shape, self._dataset, batches, folder)

    def protection(self, job: Job, dimension: int) -> Protection:
        return make_protection(job, dimension)

    def held_out(self) -> HeldOut | None:
        tested, train = self._tested, self._dataset.train
        if tested is not None and train.usable is not None:
            tested = tested.only(train.usable)
        return None if tested is None else HeldOut(train, tested)

    def identify(self) -> Iterable[npt.NDArray[Any]]:
        train, split = self._dataset.train, self._partition
        found = (train.x, train.y, split.indices, split.offsets)
        return found if train.usable is None else (*found, train.usable)

    def describe(self) -> Iterable[str]:
        yield f"{self._dataset.name}: {self._partition.summary(self._dataset.labels)}"
        yield from several_inputs(self._dataset.example_shape)

    def start(
        self,
        job: Job,
        shape: ModelShape,
        protection: Protection,
        folder: Path,
        event: Callable[[str], None],
    ) -> Executor:
        """Start the threads, processes or machines that train the clients.

        Returns the executor that delivers messages to the clients. `folder` is the run's folder,
        and `event` logs a line.
        """
        if not job.simulation.masks:
            event("secure aggregation runs without masks (simulation.masks = false)")
        executor = self._executor(job, shape, protection.dimension, folder, event)
        fails = job.simulation.dropouts or job.simulation.answer_ms
        return Faulty(executor, job, protection) if fails else executor

    def _executor(
        self,
        job: Job,
        shape: ModelShape,
        dimension: int,
        folder: Path,
        event: Callable[[str], None],
    ) -> Executor:
        train, split = self._dataset.train, self._partition
        self._starting("computing the output of the fixed layers")
        part, device = TrainedPart.of(make_model(job, shape)), job.training.device
        if train.usable is None:
            held, usable = part.stored_inputs(train.x, device), None
        else:
            held, usable = part.stored_usable_inputs(train.x, train.usable, device)
            if said := described(usable):
                event(said)
        data = ClientsData(held, train.y, split.indices, split.offsets, usable)
        if job.simulation.on != HERE:
            return self._on_a_cluster(job, shape, data, dimension, folder, event)
        return start_locally(
            job,
            shape,
            data,
            dimension,
            folder,
            pack=lambda: own_code.packed(job.own_names),
            starting=self._starting,
            event=event,
        )

    def _on_a_cluster(
        self,
        job: Job,
        shape: ModelShape,
        data: ClientsData,
        dimension: int,
        folder: Path,
        event: Callable[[str], None],
    ) -> Executor:
        few = slice(_CHECKED_BATCHES * job.training.batch_size)
        part, test = TrainedPart.of(make_model(job, shape)), self._dataset.test
        x = part.inputs(test.x[few], job.training.device)
        batch = ClientsData.of_one(0, x, test.y[few])
        return start_on_a_cluster(
            job, shape, data, batch, dimension, folder, starting=self._starting, event=event
        )

"""Makes and checks everything that a run needs, before the run has a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from fedveil.data.datasets import Dataset
from fedveil.engine.assembly import ModelShape, check_buffers, load_data, make_model, make_task
from fedveil.engine.callbacks import Callback, Callbacks
from fedveil.engine.canaries import Canaries
from fedveil.engine.cohorts import Cohorts
from fedveil.engine.engine import Engine
from fedveil.engine.evaluation import ModelTest
from fedveil.engine.own_layer_evaluation import make_test
from fedveil.engine.run_records import figures_of
from fedveil.engine.server_optimizer import ServerOptimizer, make_optimizer
from fedveil.engine.stopping import Stopping
from fedveil.federated.job import Job
from fedveil.protections.base import Protection
from fedveil.record.recorder import find_board


@dataclass(frozen=True)
class Parts:
    """Everything that a run uses except its folder. Made by `assemble`."""

    #: The job, with its number of clients.
    job: Job
    shape: ModelShape
    model: nn.Module
    #: The number of all clients' training examples.
    examples: int
    #: The trainer's name, or None if other machines train.
    trainer: str | None
    test: ModelTest
    protection: Protection
    canaries: Canaries
    cohorts: Cohorts
    optimizer: ServerOptimizer
    stopping: Stopping
    callbacks: Callbacks
    #: A digest of everything that must be unchanged if the run is resumed.
    fingerprint: str


def assemble(
    job: Job, engine: Engine, dataset: Dataset | None = None, callbacks: Iterable[Callback] = ()
) -> Parts:
    """Make and check everything that the job's run needs except its folder.

    Raises an error if the job cannot run. `dataset` replaces the job's data. `callbacks` are called
    before those that the job names.
    """
    task = make_task(job)
    dataset = load_data(job) if dataset is None else dataset
    job = engine.settle(job, dataset)
    shape = ModelShape.of(dataset)
    model = make_model(job, shape)
    shape = shape.with_fingerprint(model)
    trainer = engine.check_trainer(job, shape)
    test = make_test(job, model, task, dataset.test, engine.held_out())
    check_buffers(job, test.layout)
    if job.record.tensorboard:
        find_board()
    called = Callbacks(job.record.callbacks, callbacks)
    dimension = test.layout.dimension * job.training.reported_vectors
    protection = engine.protection(job, dimension)
    # Before the first report leaves: raises if a figure's name is taken.
    figures_of(protection, protection.initial_state(), task.measures)
    return Parts(
        job=job,
        shape=shape,
        model=model,
        examples=len(dataset.train.y),
        trainer=trainer,
        test=test,
        protection=protection,
        canaries=Canaries(job, protection),
        cohorts=Cohorts(job),
        optimizer=make_optimizer(job, test.layout.trainable),
        stopping=Stopping(job.stopping, task.measures),
        callbacks=called,
        fingerprint=run_fingerprint(job, dataset, engine.identify(), shape.fingerprint),
    )


#: The keys that a resumed run may change.
_FREE: Any = {"rounds": True, "simulation": {"on"}}


def run_fingerprint(
    job: Job, dataset: Dataset, more: Iterable[npt.NDArray[Any]], model: str
) -> str:
    """Return a digest of job, model and data. A run can be resumed only with an equal digest.

    The number of rounds and the place where clients are trained are not in the digest. `more` are
    further arrays that identify the data. `model` is a digest of the model's tensors.
    """
    settings = json.dumps(job.model_dump(exclude=_FREE), sort_keys=True)
    digest = hashlib.sha256(f"{settings} {model}".encode())
    arrays: list[npt.NDArray[Any]] = [dataset.test.x, dataset.test.y, *more]
    for array in arrays:
        digest.update(repr((array.shape, array.dtype)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()

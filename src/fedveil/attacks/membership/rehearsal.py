"""A job run on some of its training examples, by the simulator itself."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from fedveil._arrays import Int64s
from fedveil.data.datasets import Dataset, Examples
from fedveil.data.examples import owner_codes
from fedveil.engine.federation import Federation
from fedveil.engine.simulation import Simulator
from fedveil.federated.job import Job
from fedveil.record.run_folder import RunFolder


def part_of(dataset: Dataset, rows: Int64s) -> Dataset:
    """The data set with some of its training examples alone."""
    train = Examples(dataset.train.x[rows], dataset.train.y[rows])
    owners = None if dataset.owners is None else owner_codes(dataset.owners[rows])
    return replace(dataset, train=train, owners=owners)


def rehearse(job: Job, dataset: Dataset, seed: int) -> nn.Module:
    """The model that the job ends with on this data, under its protection and with this seed.

    Every round is a real one, in this process; the run's record is thrown away.
    """
    data = job.model_dump()
    data["seed"] = seed
    data["simulation"]["workers"] = 0
    data["record"]["tensorboard"] = False
    for block in ("evaluation", "checkpoint"):
        data[block]["every"] = job.rounds
    if job.data.split == "by_client":
        data["clients"]["number"] = None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        opened = partial(RunFolder.create, Path(folder) / "run", job.name)
        run = Federation(Job(**data), Simulator(), opened, stack, dataset=dataset).run()
    return run.model

"""Trains a user's model on one batch before the first round, so that errors appear at once."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.base import own_code
from fedveil.base.example_arrays import opened
from fedveil.data.datasets import Dataset
from fedveil.data.partition import Partition
from fedveil.engine.assembly import ModelShape, make_model, make_task, make_trainer
from fedveil.engine.evaluation import metric_entries
from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid, TaskInvalid
from fedveil.federated.job import Job
from fedveil.federated.language_blocks import is_language_model
from fedveil.learning import models
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import BUNDLED, Task, plan_loss
from fedveil.learning.losses import OWN
from fedveil.learning.own_layers import whole
from fedveil.learning.task_trainer import on_device
from fedveil.learning.trained_part import TrainedPart, taken
from fedveil.learning.trainer import ClientData
from fedveil.learning.weight_layout import Layout
from fedveil.record.run_folder import TRACEBACK, RunFolder

#: The number of batches to try. Unusual examples may make a single batch fail.
_BATCHES = 8


#: Inputs and targets.
Batch = tuple[Any, Any]


def batches_of(job: Job, dataset: Dataset, split: Partition) -> Iterator[Batch]:
    """Yield a batch of training examples from each of several clients of the partition `split`."""
    for client in range(0, split.clients, max(1, split.clients // _BATCHES)):
        rows = split.of(client)[: job.training.batch_size]
        yield dataset.train.x[rows], dataset.train.y[rows]


def batches_of_the_test(job: Job, dataset: Dataset) -> Iterator[Batch]:
    """Yield batches of test examples, on which `try_out` trains instead of on training examples.

    Used under `privacy.unit: example`, where no training example may decide if the run starts.
    """
    x, y = dataset.test.x, dataset.test.y
    for start in range(0, len(y), max(1, len(y) // _BATCHES)):
        rows = np.arange(start, min(start + job.training.batch_size, len(y)))
        yield x[rows], y[rows]


def try_out(
    job: Job, shape: ModelShape, dataset: Dataset, batches: Iterable[Batch], folder: RunFolder
) -> None:
    """Train on one of `batches`, and evaluate one batch, to find errors in a user's model.

    If training fails on a batch, the next batch is tried. So a model that fails on only some
    clients' data is accepted. Raises `ModelInvalid` if all batches or the evaluation fail, and
    saves the traceback in `folder`.
    """
    model = whole(make_model(job, shape))
    device = torch.device(job.training.device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rounds will repeat the warnings
        what, failure = "train", _training(job, model.to(device), dataset, batches)
        if failure is None:
            what, failure = "be tested", _evaluation(job, model.cpu(), dataset)
    if failure is None:
        folder.remove(TRACEBACK)
        return
    folder.write_atomically(TRACEBACK, "".join(traceback.format_exception(failure)).encode())
    under = f" under task = {job.task}" if job.task != "classification" else ""
    by_task = isinstance(failure, TaskInvalid) and job.task not in BUNDLED
    place = own_code.place_of(failure) or _defined_at(job.task if by_task else job.model)
    raise ModelInvalid(
        f"model = {job.model!r}{under} cannot {what}: {own_code.described(failure)} ({place}); the "
        f"traceback is in {folder.path / TRACEBACK}"
    )


def _defined_at(name: str) -> str:
    if is_language_model(name):
        return name
    made = models.MODELS.get(name) or own_code.load(name, key=name, error=ModelInvalid)
    return own_code.defined_at(made)


def _training(
    job: Job, model: nn.Module, dataset: Dataset, batches: Iterable[Batch]
) -> Exception | None:
    first: Exception | None = None
    for x, y in batches:
        try:
            data = ClientData.of(taken(model, x), y, Seeded(job.seed, "trial"))
            _step(job, model, data, dataset)
        except Exception as error:  # the user's model may raise anything
            first = first or error
        else:
            return None
    return first


def _step(job: Job, model: nn.Module, client: ClientData, dataset: Dataset) -> None:
    device, task, (x, y) = job.training.device, make_task(job), client.rows
    inputs, targets = on_device(task.collate(opened(x), opened(y)), device)
    outputs = task.forward(model.train(), inputs)
    _check_outputs(task, dataset, outputs, targets)
    loss = task.loss(outputs, targets)
    if not isinstance(loss, torch.Tensor):
        raise TaskInvalid(f"the task's loss is a {type(loss).__name__}. Return it as a tensor")
    if loss.ndim:
        raise TaskInvalid("the task's loss is not a single number. Return the mean over the batch")
    learnt = [p for p in model.parameters() if p.requires_grad]
    torch.autograd.grad(loss, learnt, allow_unused=True)
    alone = job.privacy.unit == "example"
    once = job.training.model_copy(update={"epochs": 1, "sampling_rate": 1.0 if alone else None})
    trial = job.model_copy(update={"training": once})
    trainer = make_trainer(trial, model, dataset.example_shape)
    # These trainers use vectorised calls or the task's own step, which may fail on this model.
    if trainer.least > 1 or alone or trainer.own_step:
        part = TrainedPart.of(model)
        trainer.start(Layout(part.module).vector())
        seen = ClientData.of(part.inputs(x, device), y, client.entropy)
        ((_, (failure,)),) = trainer.train([seen])
        if failure is not None:
            raise failure


def _evaluation(job: Job, model: nn.Module, dataset: Dataset) -> Exception | None:
    few, task = slice(job.training.batch_size), make_task(job)
    x, y = taken(model, dataset.test.x[few]), dataset.test.y[few]
    try:
        with torch.no_grad():
            inputs, targets = task.collate(opened(x), opened(y))
            _check_outputs(task, dataset, task.forward(model.eval(), inputs), targets)
        metric_entries(score(model, task, x, y))
    except Exception as error:  # the user's model may raise anything
        return error
    return None


def _check_outputs(task: Task, dataset: Dataset, outputs: object, targets: Any) -> None:
    """Raise an error if the model's `outputs` have the wrong type or shape for a built-in task.

    The outputs are not checked if the task is a user's own.
    """
    if plan_loss(task) == OWN:
        return
    if not isinstance(outputs, torch.Tensor):
        raise TypeError(f"it returns a {type(outputs).__name__} instead of one tensor of scores")
    shape, wanted, classes = tuple(outputs.shape), tuple(targets.shape), dataset.classes
    if dataset.targets in ("numbers", "bits"):
        if shape != wanted and (classes, shape) != (1, wanted[:1]):
            raise ValueError(f"it returns a tensor of shape {shape} instead of {wanted}")
    elif shape[:-1] != wanted or shape[-1] < classes:
        what = "tokens" if dataset.targets == "tokens" else "examples"
        count = " x ".join(map(str, wanted))
        raise ValueError(
            f"it returns a tensor of shape {shape} for {count} {what} of {classes} classes. Return "
            f"a row of {classes} scores for each"
        )

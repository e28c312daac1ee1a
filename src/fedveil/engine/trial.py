"""One batch through a user's model before the first round: what must fail fails here, and at once.

It changes nothing of the run: the model is another object, and torch's generators are given back.
"""

from __future__ import annotations

import traceback
import warnings
from dataclasses import replace

import torch
from torch import nn

from fedveil import own_code
from fedveil.data.datasets import Dataset
from fedveil.data.partition import Partition
from fedveil.engine.assembly import ModelShape, make_model, make_trainer
from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.federated.job import Job
from fedveil.learning import models
from fedveil.learning.evaluate import evaluate
from fedveil.learning.own_layers import whole
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.trainer import ClientData
from fedveil.learning.weight_layout import Layout
from fedveil.record.run_folder import TRACEBACK, RunFolder

#: A batch that one client's data spoils says nothing of the others': so many are asked.
_CLIENTS = 8


def try_out(
    job: Job, shape: ModelShape, dataset: Dataset, split: Partition, folder: RunFolder
) -> None:
    """Train on one batch, of several clients where it fails, and evaluate one.

    Raises `ModelInvalid` where all of them fail, with the line of the user's file; the traceback
    is in the run's folder. A model that only some clients' data spoils goes on to its rounds.
    """
    model = whole(make_model(job, shape))
    device = torch.device(job.training.device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rounds will say so again
        what, failure = "train", _training(job, model.to(device), dataset, split)
        if failure is None:
            what, failure = "be tested", _evaluation(job, model.cpu(), dataset)
    if failure is None:
        folder.remove(TRACEBACK)
        return
    folder.write_atomically(TRACEBACK, "".join(traceback.format_exception(failure)).encode())
    place = own_code.place_of(failure) or _defined_at(job.model)
    raise ModelInvalid(
        f"model = {job.model!r} cannot {what}: {own_code.described(failure)} ({place}); the "
        f"traceback is in {folder.path / TRACEBACK}"
    )


def _defined_at(name: str) -> str:
    """Where the function that makes a model stands: the layers of a plain chain are torch's own."""
    made = models.MODELS.get(name) or own_code.load(name, key=name, error=ModelInvalid)
    return own_code.defined_at(made)


def _training(job: Job, model: nn.Module, dataset: Dataset, split: Partition) -> Exception | None:
    """What the first of some clients' batches raised, where all of them did."""
    first: Exception | None = None
    for client in range(0, split.clients, max(1, split.clients // _CLIENTS)):
        rows = split.of(client)[: job.training.batch_size]
        x, y = torch.from_numpy(dataset.train.x[rows]), torch.from_numpy(dataset.train.y[rows])
        try:
            _step(job, model, ClientData(x, y, Seeded(job.seed, "trial")), dataset.classes)
        except Exception as error:  # the user's model may raise anything
            first = first or error
        else:
            return None
    return first


def _step(job: Job, model: nn.Module, client: ClientData, classes: int) -> None:
    device = job.training.device
    scores = model.train()(client.x.to(device))
    _check_scores(scores, len(client), classes)
    loss = nn.functional.cross_entropy(scores, client.y.to(device))
    torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    alone = job.privacy.unit == "example"
    once = job.training.model_copy(update={"epochs": 1, "sampling_rate": 1.0 if alone else None})
    trainer = make_trainer(job.model_copy(update={"training": once}), model)
    if trainer.least > 1 or alone:  # one vectorised call, which not every forward pass can be
        part = TrainedPart.of(model)
        seen = torch.from_numpy(part.seen(client.x.numpy(), device))
        trainer.start(Layout(part.module).vector())
        ((_, (failure,)),) = trainer.train([replace(client, x=seen)])
        if failure is not None:
            raise failure


def _evaluation(job: Job, model: nn.Module, dataset: Dataset) -> Exception | None:
    few = slice(job.training.batch_size)
    x, y = dataset.test.x[few], dataset.test.y[few]
    try:
        with torch.no_grad():
            _check_scores(model.eval()(torch.tensor(x)), len(y), dataset.classes)
        evaluate(model, x, y)
    except Exception as error:  # as above
        return error
    return None


def _check_scores(scores: object, examples: int, classes: int) -> None:
    """A label that no batch happens to hold would be missed by its loss much later."""
    if not isinstance(scores, torch.Tensor):
        raise TypeError(f"it gives a {type(scores).__name__}, one tensor of scores is needed")
    shape = tuple(scores.shape)
    if len(shape) != 2 or shape[0] != examples or shape[1] < classes:
        raise ValueError(
            f"it gives a tensor of shape {shape} for {examples} examples of {classes} classes: a "
            f"row of {classes} scores for each is needed"
        )

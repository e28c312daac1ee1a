"""The part of a client's answer that needs torch: its examples, its model, its update."""

from __future__ import annotations

import logging

import numpy as np
import torch

from fedveil.data.datasets import load
from fedveil.engine.assembly import Task, make_model, make_partition, make_trainer
from fedveil.engine.executors.client_side import ClientsData, ClientSide
from fedveil.engine.job_protection import report_entropy
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, DeploymentError
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from fedveil.message import Message, take, take_array
from fedveil.protections.base import ClientId, Protection

_log = logging.getLogger("flwr")


def own_data(job: Job, client: ClientId, function: str | None) -> ClientsData:
    """The client's examples: what its own function gives, or its part of the job's data set."""
    if function is None:
        data = load(job.data.name)
        split = make_partition(job, data)
        return ClientsData(data.train.x, data.train.y, split.indices, split.offsets)
    data = load(function)
    count = len(data.train.y)
    offsets = np.zeros(client + 2, np.int64)
    offsets[-1] = count
    return ClientsData(data.train.x, data.train.y, np.arange(count), offsets)


def trained_answer(
    job: Job,
    client: ClientId,
    function: str | None,
    protection: Protection,
    asked: Message,
    common: Message,
) -> bytes:
    """The encoded answer of a client that trains on its examples first.

    Raises `ClientWithheld` where the half reports nothing, `DeploymentError` where training
    fails or the server's model does not fit.
    """
    task = _read_task(common)
    data = own_data(job, client, function)
    _check_examples(data, task)
    weights = take_array(common, "weights", "float32", (take(common, "dimension", int),))
    model = make_model(job, task)
    if Layout(model).dimension != len(weights):
        raise DeploymentError(
            f"the server's model has {len(weights)} weights, model = {job.model} has "
            f"{Layout(model).dimension}"
        )
    side = ClientSide(
        protection=protection,
        trainer=make_trainer(job, model),
        data=data,
        model=weights.copy(),  # torch takes no array that cannot be written
        training_entropy=Seeded(job.seed, "training"),
        report_entropy=report_entropy(job),
    )
    side.open(take(common, "round", int))
    # More threads may add in another order: one gives the simulator's bytes.
    torch.set_num_threads(1)
    answer = side.answer([(client, asked)])[0]
    for text in answer.warnings:
        _log.warning("%s", text)
    if answer.withheld is not None:
        raise ClientWithheld(answer.withheld)
    if answer.failed is not None or not isinstance(answer.report, bytes):
        raise DeploymentError(f"training failed: {answer.failed}")
    return answer.report


def _read_task(common: Message) -> Task:
    shape = take(common, "example_shape", np.ndarray)
    return Task(
        example_shape=tuple(map(int, shape)),
        classes=take(common, "classes", int),
        fingerprint=take(common, "fingerprint", str),
    )


def _check_examples(data: ClientsData, task: Task) -> None:
    if data.x.shape[1:] != task.example_shape:
        raise DeploymentError(
            f"this client's examples have shape {data.x.shape[1:]}, the job's have "
            f"{task.example_shape}"
        )
    if data.y.max() >= task.classes:
        raise DeploymentError(
            f"this client has the label {data.y.max()}, the job's are in [0, {task.classes})"
        )

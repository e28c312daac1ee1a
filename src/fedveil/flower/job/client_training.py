"""The part of a client's answer that needs torch: its examples, its model, its update."""

from __future__ import annotations

import logging

import numpy as np
import torch

from fedveil.data.datasets import load
from fedveil.engine.assembly import ModelShape, make_model, make_partition, make_trainer
from fedveil.engine.executors.client_side import ClientsData, LocalTraining, Trained
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, DeploymentError
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from fedveil.message import Message, take, take_array
from fedveil.protections.base import Update
from fedveil.rounds.answers import ClientId, Failed, Withheld

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


class Training:
    """A client's training in one round, from what the server has told all clients."""

    def __init__(self, job: Job, client: ClientId, function: str | None, common: Message) -> None:
        shape = ModelShape(
            example_shape=tuple(map(int, take(common, "example_shape", np.ndarray))),
            classes=take(common, "classes", int),
            fingerprint=take(common, "fingerprint", str),
        )
        data = own_data(job, client, function)
        _check_examples(data, shape)
        # A copy, since torch takes no array that cannot be written.
        weights = take_array(common, "weights", "float32", (take(common, "dimension", int),))
        self.model = weights.copy()
        self.examples = data.examples(client)
        self._client = client
        model = make_model(job, shape)
        if Layout(model).dimension != len(weights):
            raise DeploymentError(
                f"the server's model has {len(weights)} weights, model = {job.model} has "
                f"{Layout(model).dimension}"
            )
        entropy = Seeded(job.seed, "training")
        self._training = LocalTraining(make_trainer(job, model), data, entropy)
        self._training.open(take(common, "round", int), self.model)

    def update(self) -> Update:
        """The client's update.

        Raises `ClientWithheld` where it is of no use, `DeploymentError` where training fails.
        """
        # More threads may add in another order: one gives the simulator's bytes.
        torch.set_num_threads(1)
        (answer,) = self._training.updates([self._client])
        for text in answer.effort.warnings:
            _log.warning("%s", text)
        match answer:
            case Trained(update=update):
                return update
            case Withheld(reason=reason):
                raise ClientWithheld(reason)
            case Failed(reason=reason):
                raise DeploymentError(f"training failed: {reason}")
        raise AssertionError(answer)


def _check_examples(data: ClientsData, shape: ModelShape) -> None:
    if data.x.shape[1:] != shape.example_shape:
        raise DeploymentError(
            f"this client's examples have shape {data.x.shape[1:]}, the job's have "
            f"{shape.example_shape}"
        )
    if data.y.max() >= shape.classes:
        raise DeploymentError(
            f"this client has the label {data.y.max()}, the job's are in [0, {shape.classes})"
        )

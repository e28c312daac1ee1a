"""How good the clients' models are where each has layers of its own."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from fedveil._arrays import Float32s
from fedveil.data.examples import Examples
from fedveil.engine.assembly import make_way
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.quality import ModelTest
from fedveil.federated.job import Job
from fedveil.learning.own_layers import whole
from fedveil.learning.weight_layout import Layout


def make_test(job: Job, model: nn.Module, test: Examples) -> ModelTest:
    """The test of the job's rounds."""
    if not job.clients.own_layers:
        return ModelTest(model, test, job.training.device)
    return OwnLayersTest(job, model, test)


class OwnLayersTest(ModelTest):
    """Every figure is the mean over the clients that have trained, each with its own layers.

    Before any has, and for a layout, it is the model's with the layers that it begins with.
    """

    def __init__(self, job: Job, model: nn.Module, test: Examples) -> None:
        super().__init__(model, test, job.training.device)
        copied = copy.deepcopy(model)
        self._way = make_way(job, copied)
        self._of_whole = ModelTest(whole(copied), test, job.training.device)

    def quality(self, weights: Float32s) -> dict[str, float]:
        states, size = self.clients, self._way.size
        kept = [newest(states, client, size) for client in states.clients()] if states else []
        starts = [self._way.begin(weights, own)[0] for own in kept or [None]]
        found = [self._of_whole.quality(start) for start in starts]
        return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def newest(states: ClientStates, client: int, size: int) -> Float32s | None:
    """What the client has kept last."""
    return states.load(client, 1 << 62, size)


def client_model(job: Job, model: nn.Module, states: ClientStates, client: int) -> nn.Module:
    """A copy of a run's model with the client's own layers in the place of the first ones."""
    shared = Layout(model).vector()
    found = copy.deepcopy(model)
    way = make_way(job, found)
    start, _ = way.begin(shared, newest(states, client, way.size))
    Layout(found).write(torch.from_numpy(start))
    return found

"""Tests the clients' models when each client has layers of its own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Float32s
from fedveil.data.examples import Examples
from fedveil.engine.assembly import make_state_rule
from fedveil.engine.client_evaluation import ClientTest, HeldOut, summary
from fedveil.engine.evaluation import ModelTest
from fedveil.engine.executors.client_states import ClientStates
from fedveil.federated.job import Job
from fedveil.learning.learning_task import Task
from fedveil.learning.own_layers import whole
from fedveil.learning.weight_layout import Layout


def make_test(
    job: Job, model: nn.Module, task: Task, test: Examples, held: HeldOut | None
) -> ModelTest:
    if not job.clients.own_layers:
        return ModelTest(model, task, test, job.training.device, held)
    return OwnLayersTest(job, model, task, test, held)


class OwnLayersTest(ModelTest):
    """Tests each client's model, which includes the client's own layers, and averages the metrics.

    On the test examples, it tests the model of each client that has trained. If no client has, it
    tests a model with the initial layers. On a client's held-out examples, it tests that client's
    model.
    """

    def __init__(
        self, job: Job, model: nn.Module, task: Task, test: Examples, held: HeldOut | None
    ) -> None:
        super().__init__(model, task, test, job.training.device)
        copied = copy.deepcopy(model)
        self._rule = make_state_rule(job, copied)
        self._of_whole = ModelTest(whole(copied), task, test, job.training.device)
        self._number = job.clients.number or 0
        part = self._of_whole.part
        self._each = None if held is None else ClientTest(part, task, held, job.training.device)

    def quality(self, weights: Float32s) -> dict[str, Any]:
        trained: list[int | None] = []
        trained += [] if self.clients is None else self.clients.clients()
        starts = [self._start(weights, client) for client in trained or [None]]
        found = [self._of_whole.quality(start) for start in starts]
        means = {name: _mean([one[name] for one in found]) for name in found[0]}
        if self._each is None:
            return means
        figures = []
        for client in range(self._number):
            self._of_whole.layout.write(torch.from_numpy(self._start(weights, client)))
            figures.append(self._each.figure(client))
        return means | summary(np.array(figures), self._each.better)

    def _start(self, weights: Float32s, client: int | None) -> Float32s:
        kept = None
        if client is not None and self.clients is not None:
            kept = newest(self.clients, client, self._rule.size)
        return self._rule.begin(weights, kept)[0]


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return values[0]
    mean = np.mean(values, axis=0)
    return mean.tolist() if mean.ndim else float(mean)


def newest(states: ClientStates, client: int, size: int) -> Float32s | None:
    return states.load(client, 1 << 62, size)


def client_model(job: Job, model: nn.Module, states: ClientStates, client: int) -> nn.Module:
    """Return a copy of `model`, the run's global model, with the own layers of `client`.

    The own layers are loaded from `states`. If the client has not trained yet, they are those of
    `model`.
    """
    shared = Layout(model).vector()
    found = copy.deepcopy(model)
    rule = make_state_rule(job, found)
    start, _ = rule.begin(shared, newest(states, client, rule.size))
    Layout(found).write(torch.from_numpy(start))
    return found

"""Training for FedCM (Xu et al., 2021): each local step also follows the last aggregate."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedveil.engine.client_learning_rate import own_rate
from fedveil.engine.executors.client_side import Examples, LocalTraining
from fedveil.engine.executors.stateful_training import local_steps
from fedveil.entropy import Entropy
from fedveil.federated.job import Job
from fedveil.learning.trainer import ClientData, Trainer
from fedveil.protections.base import Update
from fedveil.rounds.outcomes import ClientId


class DirectedTraining(LocalTraining):
    """Trains each client with FedCM's steps w += -alpha * lr * gradient + (1 - alpha) / K * d.

    w are the weights and d is the last round's aggregate, which the server sends with the weights.
    K is the client's number of steps, lr the learning rate, and alpha `training.own_direction`.
    Clients keep no state.

    If K is equal for all clients and lr is constant, these are exactly the steps of Xu et al.
    (2021). Their direction is then -d / (K * lr).
    """

    def __init__(self, job: Job, trainer: Trainer, data: Examples, entropy: Entropy) -> None:
        super().__init__(trainer, data, entropy)
        self._job = job
        self._direction = torch.empty(0)

    def open(self, round: int, model: Update) -> None:
        size = len(model) // 2
        super().open(round, model[:size])
        self._direction = torch.tensor(model[size:])

    def _of(self, client: ClientId) -> ClientData:
        data, alpha = super()._of(client), self._job.training.own_direction
        rate = own_rate(self._job, self._round)
        share = (1 - alpha) / (local_steps(self._job, len(data)) * rate)
        return replace(data, correction=self._direction * -share)

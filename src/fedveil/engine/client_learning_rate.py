"""The clients' learning rate in each round, and a trainer that follows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from fedveil.base import own_code
from fedveil.base.array_types import Float32s
from fedveil.errors import InvalidValue
from fedveil.federated.job import Job
from fedveil.learning.trainer import ClientData, OneThread, Trained, Trainer


def client_rate(job: Job, round: int) -> float:
    """Return the clients' learning rate in `round`."""
    settings = job.training
    rate = settings.planned_rate(round)
    if rate is None:
        rate = _scheduled(settings.lr_schedule, round, settings.lr)
    if not (math.isfinite(rate) and rate > 0):
        raise InvalidValue(
            f"training.lr_schedule = {settings.lr_schedule!r} gives the rate {rate!r} in round "
            f"{round}. It must be a number above 0"
        )
    return rate


def own_rate(job: Job, round: int) -> float:
    """Return the number by which a client's steps in `round` multiply the client's gradients.

    It is the learning rate. Under FedCM, it is the learning rate times `training.own_direction`.
    """
    fedcm = job.training.algorithm == "fedcm"
    return client_rate(job, round) * (job.training.own_direction if fedcm else 1.0)


def _scheduled(name: str, round: int, lr: float) -> float:
    key = f"training.lr_schedule = {name!r}"
    schedule = own_code.load(name, key=key, error=InvalidValue)
    with own_code.own_code_errors(key, InvalidValue):
        return float(own_code.called(schedule, round=round, lr=lr))


class ScheduledTrainer(OneThread):
    """Trains each round with the trainer `make(round)`, which has that round's learning rate."""

    def __init__(self, job: Job, make: Callable[[int], Trainer]) -> None:
        self._job, self._make = job, make
        self._rate, self._trainer = client_rate(job, 1), make(1)
        self.chunk, self.least = self._trainer.chunk, self._trainer.least
        self.native, self.own_step = self._trainer.native, self._trainer.own_step

    def start(self, weights: Float32s, round: int = 1) -> None:
        rate = client_rate(self._job, round)
        if rate != self._rate:
            self._rate, self._trainer = rate, self._make(round)
        self._trainer.start(weights, round)

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        return self._trainer.train(clients)

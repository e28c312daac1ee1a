"""Training in which a client goes on from what it has kept, which never leaves it.

A `Way` says what that is. `OwnLayers`: the layers that stay with the client (FedBN, FedPer).
`Scaffold` (Karimireddy et al., 2020, option II) and `Dynamic` (FedDyn; Acar et al., 2021): a vector
that corrects each of the client's gradients for how its data differs from the others'.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from fedveil.base.arrays import Bools, Float32s
from fedveil.engine.client_rate import client_rate
from fedveil.engine.executors.client_side import ClientsData, Trained, Training, noting_warnings
from fedveil.engine.executors.client_states import ClientStates
from fedveil.entropy import Entropy
from fedveil.federated.job import Job
from fedveil.learning.trainer import Trainer
from fedveil.protections.base import Update
from fedveil.rounds.outcomes import Answer, ClientId, Effort, Failed


class Way(Protocol):
    """What a client keeps, and what it does with it; `sent` is the vector of the round."""

    @property
    def size(self) -> int:
        """How many entries are kept."""

    def begin(self, sent: Float32s, kept: Float32s | None) -> tuple[Float32s, Float32s | None]:
        """Where training starts, and the correction of its gradients."""

    def end(
        self, sent: Float32s, kept: Float32s | None, change: Float32s, steps: int, rate: float
    ) -> tuple[Float32s, Float32s]:
        """The update, of the length of `sent`, and what is kept, after so many steps."""


@dataclass(frozen=True)
class OwnLayers:
    """`own` are the places of a client's own layers in its whole model, `initial` its beginning."""

    own: Bools
    initial: Float32s

    @property
    def size(self) -> int:
        return int(self.own.sum())

    def begin(self, sent: Float32s, kept: Float32s | None) -> tuple[Float32s, None]:
        start = self.initial.copy()
        start[~self.own] = sent
        if kept is not None:
            start[self.own] = kept
        return start, None

    def end(
        self, sent: Float32s, kept: Float32s | None, change: Float32s, steps: int, rate: float
    ) -> tuple[Float32s, Float32s]:
        before = self.initial[self.own] if kept is None else kept
        return change[~self.own], before + change[self.own]


@dataclass(frozen=True)
class Scaffold:
    """The client's control variate; what is sent, and reported, is the model and then the mean one.

    Changes of variates are reported times `unit`, the job's learning rate: as changes of weights in
    one step. Buffers have no gradients, and their variates stay zero.
    """

    trainable: Bools
    unit: float

    @property
    def size(self) -> int:
        return len(self.trainable)

    def begin(self, sent: Float32s, kept: Float32s | None) -> tuple[Float32s, Float32s]:
        start, mean = np.split(sent, 2)
        return start.copy(), mean.copy() if kept is None else mean - kept

    def end(
        self, sent: Float32s, kept: Float32s | None, change: Float32s, steps: int, rate: float
    ) -> tuple[Float32s, Float32s]:
        old = np.zeros_like(change) if kept is None else kept
        new = old - sent[len(change) :] - change / np.float32(steps * rate)
        new[~self.trainable] = 0
        return np.concatenate([change, (new - old) * np.float32(self.unit)]), new


@dataclass(frozen=True)
class Dynamic:
    """The sum of the gradients that the client's regularisation has to make up for."""

    trainable: Bools
    alpha: float

    @property
    def size(self) -> int:
        return len(self.trainable)

    def begin(self, sent: Float32s, kept: Float32s | None) -> tuple[Float32s, Float32s | None]:
        return sent, None if kept is None else -kept

    def end(
        self, sent: Float32s, kept: Float32s | None, change: Float32s, steps: int, rate: float
    ) -> tuple[Float32s, Float32s]:
        moved = np.float32(self.alpha) * change * self.trainable
        return change, -moved if kept is None else kept - moved


class KeptTraining(Training):
    """Trains clients one by one, each from what it has kept; one that fails keeps what it had."""

    chunk = least = 1

    def __init__(
        self,
        job: Job,
        way: Way,
        trainer: Trainer,
        data: ClientsData,
        entropy: Entropy,
        states: ClientStates,
    ) -> None:
        self._job, self._way, self._trainer = job, way, trainer
        self._data, self._entropy, self._states = data, entropy, states
        self._round = 0
        self._sent = np.empty(0, np.float32)

    def open(self, round: int, model: Update) -> None:
        self._round, self._sent = round, model

    def examples(self, client: ClientId) -> int:
        return self._data.examples(client)

    def updates(self, clients: Sequence[ClientId]) -> Iterator[Answer]:
        for client in clients:
            yield self._trained(client)

    def _trained(self, client: ClientId) -> Answer:
        began, effort = time.perf_counter(), Effort()
        kept = self._states.load(client, self._round, self._way.size)
        start, correction = self._way.begin(self._sent, kept)
        data = self._data.of(client, self._entropy.stream("train", self._round, client))
        if correction is not None:
            data = replace(data, correction=torch.from_numpy(correction))
        self._trainer.start(start, self._round)
        with noting_warnings(effort):
            rows, (failure,) = next(self._trainer.train([data]))
        effort.training_s = time.perf_counter() - began
        if failure is not None:
            self.failure = failure
            return Failed(client, f"{type(failure).__name__}: {failure}", effort=effort)
        steps, rate = local_steps(self._job, len(data)), client_rate(self._job, self._round)
        update, new = self._way.end(self._sent, kept, rows[0], steps, rate)
        if np.isfinite(new).all():
            self._states.save(client, self._round, new)
        return Trained(client, update, effort=effort)


def local_steps(job: Job, examples: int) -> int:
    """How many steps a client with so many examples takes in a round."""
    return job.training.epochs * max(1, -(-examples // job.training.batch_size))

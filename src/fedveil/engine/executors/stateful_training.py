"""Training of clients that keep a state between rounds. The state never leaves the client.

A `StateRule` defines the state. `OwnLayers` keeps some layers at the client (FedBN, FedPer).
`Scaffold` (Karimireddy et al., 2020, option II) and `Dynamic` (FedDyn; Acar et al., 2021) keep a
vector that corrects the client's gradients for the difference between its data and other clients'
data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from fedveil.base.array_types import Bools, Float32s
from fedveil.engine.client_learning_rate import client_rate
from fedveil.engine.executors.client_side import Examples, Trained, Training
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.executors.client_warnings import WarningsNoted
from fedveil.entropy import Entropy
from fedveil.federated.job import Job
from fedveil.learning.trainer import Trainer
from fedveil.protections.base import Update
from fedveil.rounds.outcomes import Answer, ClientId, Effort, Failed


class StateRule(Protocol):
    """Defines the state that a client keeps between rounds, and how the state affects training."""

    @property
    def size(self) -> int: ...

    def begin(self, sent: Float32s, kept: Float32s | None) -> tuple[Float32s, Float32s | None]:
        """Return the weights from which a client trains, and a gradient correction or None.

        `sent` is the vector that the server sent. `kept` is the client's state, or None before its
        first report. The correction is added to the gradient in every local step.
        """

    def update(
        self, sent: Float32s, kept: Float32s | None, change: Float32s, steps: int, rate: float
    ) -> Float32s:
        """Return the client's update, a vector as long as `sent`, the vector that the server sent.

        `change` is the change of the weights after `steps` local steps at learning rate `rate`.
        `kept` is the client's state, or None before its first report.
        """

    def next(self, kept: Float32s | None, change: Float32s, carried: Float32s) -> Float32s:
        """Return the client's new state after its report. `kept` is the old state, None at first.

        `carried` is the update in the report after the protection's clipping, without noise.
        `change` is the change of the weights by training.
        """


@dataclass(frozen=True)
class OwnLayers:
    """Keeps some layers at the client. The mask `own` marks the entries of these layers.

    `initial` are all weights before the first round, from which these layers start.
    """

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

    def update(
        self, sent: Float32s, kept: Float32s | None, change: Float32s, steps: int, rate: float
    ) -> Float32s:
        return change[~self.own]

    def next(self, kept: Float32s | None, change: Float32s, carried: Float32s) -> Float32s:
        before = self.initial[self.own] if kept is None else kept
        return before + change[self.own]


@dataclass(frozen=True)
class Scaffold:
    """Keeps the client's control variate.

    The server sends one vector: the weights, then the mean of the clients' variates. A report has
    two parts: the change of the weights, and the change of the client's variate times `unit`, the
    job's learning rate. If the protection clips the report, the variate changes only by the clipped
    change. So the server's variate stays the mean if `server.weighting` is equal (the default).
    Variates of buffers, where `trainable` is False, stay zero.
    """

    trainable: Bools
    unit: float

    @property
    def size(self) -> int:
        return len(self.trainable)

    def begin(self, sent: Float32s, kept: Float32s | None) -> tuple[Float32s, Float32s]:
        start, mean = np.split(sent, 2)
        return start.copy(), mean.copy() if kept is None else mean - kept

    def update(
        self, sent: Float32s, kept: Float32s | None, change: Float32s, steps: int, rate: float
    ) -> Float32s:
        moved = -sent[len(change) :] - change / np.float32(steps * rate)
        moved[~self.trainable] = 0
        return np.concatenate([change, moved * np.float32(self.unit)])

    def next(self, kept: Float32s | None, change: Float32s, carried: Float32s) -> Float32s:
        moved = carried[len(change) :] / np.float32(self.unit)
        return moved if kept is None else kept + moved


@dataclass(frozen=True)
class Dynamic:
    """Keeps the client's state of FedDyn: -`alpha` times the sum of its reported updates.

    `alpha` is the setting `training.dynamic`. In every local step, the client subtracts its state
    from the gradient. The sum contains each update after the protection's clipping, without noise.
    The server's state (`DynamicOptimizer`) follows the same updates. So, except for noise, it stays
    the mean of the clients' states if `server.weighting` is equal (the default). `trainable` is
    False for buffers, which are not in the sum.
    """

    trainable: Bools
    alpha: float

    @property
    def size(self) -> int:
        return len(self.trainable)

    def begin(self, sent: Float32s, kept: Float32s | None) -> tuple[Float32s, Float32s | None]:
        return sent, None if kept is None else -kept

    def update(
        self, sent: Float32s, kept: Float32s | None, change: Float32s, steps: int, rate: float
    ) -> Float32s:
        return change

    def next(self, kept: Float32s | None, change: Float32s, carried: Float32s) -> Float32s:
        moved = np.float32(self.alpha) * carried * self.trainable
        return -moved if kept is None else kept - moved


class KeptTraining(Training):
    """Trains clients one by one, each with its own state.

    A client's new state becomes final if its report is in the round's sum. Otherwise it is deleted.
    """

    chunk = least = 1
    keeps = True

    def __init__(
        self,
        job: Job,
        rule: StateRule,
        trainer: Trainer,
        data: Examples,
        entropy: Entropy,
        states: ClientStates,
    ) -> None:
        self._job, self._rule, self._trainer = job, rule, trainer
        self._data, self._entropy, self._states = data, entropy, states
        self._round = 0
        self._sent = np.empty(0, np.float32)
        #: The state and the change of the weights of the client that has trained last.
        self._trained_last: tuple[ClientId, Float32s | None, Float32s] | None = None

    def open(self, round: int, model: Update) -> None:
        self._round, self._sent = round, model

    def examples(self, client: ClientId) -> int:
        return self._data.examples(client)

    def updates(self, clients: Sequence[ClientId]) -> Iterator[Answer]:
        for client in clients:
            yield self._trained(client)

    def _trained(self, client: ClientId) -> Answer:
        began, effort = time.perf_counter(), Effort()
        kept = self._states.load(client, self._round, self._rule.size)
        start, correction = self._rule.begin(self._sent, kept)
        data = self._data.of(client, self._entropy.stream("train", self._round, client))
        if correction is not None:
            data = replace(data, correction=torch.from_numpy(correction))
        self._trainer.start(start, self._round)
        with WarningsNoted(effort):
            rows, (failure,) = next(self._trainer.train([data]))
        effort.training_s = time.perf_counter() - began
        if failure is not None:
            self.failure = failure
            return Failed(client, f"{type(failure).__name__}: {failure}", effort=effort)
        steps, rate = local_steps(self._job, len(data)), client_rate(self._job, self._round)
        update = self._rule.update(self._sent, kept, rows[0], steps, rate)
        self._trained_last = client, kept, rows[0].copy()
        return Trained(client, update, effort=effort)

    def reported(self, client: ClientId, carried: Update) -> None:
        assert self._trained_last is not None, "a report follows its training"
        last, kept, change = self._trained_last
        assert last == client, "clients report in the order in which they train"
        new = self._rule.next(kept, change, carried)
        if np.isfinite(new).all():
            self._states.save(client, self._round, new)


def local_steps(job: Job, examples: int) -> int:
    """Return a client's number of local steps in a round, given its number of examples."""
    return job.training.epochs * max(1, -(-examples // job.training.batch_size))

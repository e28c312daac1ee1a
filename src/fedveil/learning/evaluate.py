"""Evaluates a model on held-out examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Array, Int64s
from fedveil.base.example_arrays import opened
from fedveil.errors import TaskInvalid
from fedveil.learning.device import seeded_generators
from fedveil.learning.learning_task import Task
from fedveil.learning.task_trainer import on_device

#: The examples per batch: so few that a small convolution's arrays stay in the processor's cache.
_BATCH = 250
#: The seed of torch's generator at the start of an evaluation.
_SEED = 0


@dataclass(frozen=True)
class Scores:
    """The results of an evaluation: the mean `loss`, and the data for the metrics of `task`.

    `kept` has the arrays that `task.scored` returned, with one row for each evaluated example.
    """

    task: Task
    kept: tuple[Array, ...]
    loss: float

    def figures(self) -> dict[str, Any]:
        """Return the loss and the task's metrics over all examples."""
        return {"loss": self.loss, **self.task.metrics(*self.kept)}

    def of(self, rows: Int64s) -> dict[str, Any]:
        """Return the task's metrics over the examples at indices `rows`."""
        return self.task.metrics(*(part[rows] for part in self.kept))


@torch.no_grad()
def score(model: nn.Module, task: Task, x: Array, y: Array, device: str = "cpu") -> Scores:
    """Evaluate the model on the examples `x` with targets `y`.

    Returns the mean loss, and the data from which the task computes its metrics. A model or task
    that draws from torch's generator, such as a variational autoencoder, draws the same numbers in
    every evaluation, so that rounds, runs and numbers of workers can be compared.
    """
    was_training = model.training
    try:
        with seeded_generators(_SEED, torch.device(device)):
            return _score(model.eval(), task, x, y, device)
    finally:
        model.train(was_training)


def _score(model: nn.Module, task: Task, x: Array, y: Array, device: str) -> Scores:
    parts, loss = [], 0.0
    size = min(_BATCH, getattr(model, "scored_at_once", _BATCH))
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        inputs, targets = on_device(task.collate(opened(x[rows]), opened(y[rows])), device)
        outputs = task.forward(model, inputs)
        loss += float(task.loss(outputs, targets)) * len(y[rows])
        parts.append(task.scored(outputs, targets))
    kept = tuple(_joined(part) for part in zip(*parts, strict=True))
    return Scores(task, kept, loss / len(y))


def _joined(batches: tuple[Array, ...]) -> Array:
    shapes = list(dict.fromkeys(batch.shape[1:] for batch in batches))
    if len(shapes) > 1:
        raise TaskInvalid(
            f"the metrics need arrays of one shape, but a row of the outputs or targets has shape "
            f"{shapes[0]} in one batch and {shapes[1]} in another. Define the task's method "
            f"scored(outputs, targets), which returns the arrays that metrics gets"
        )
    return np.concatenate(batches)

"""How good a model is on held-out examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.base.arrays import Array, Int64s
from fedveil.base.example_arrays import opened
from fedveil.learning.learning_task import Task
from fedveil.learning.task_trainer import on_device

_BATCH = 1000


@dataclass(frozen=True)
class Scores:
    """What a task keeps of a model's outputs on examples, a row each, and the mean loss."""

    task: Task
    kept: tuple[Array, ...]
    loss: float

    def figures(self) -> dict[str, Any]:
        """The loss and the task's metrics, of all examples."""
        return {"loss": self.loss, **self.task.metrics(*self.kept)}

    def of(self, rows: Int64s) -> dict[str, Any]:
        """The task's metrics of some of the examples."""
        return self.task.metrics(*(part[rows] for part in self.kept))


@torch.no_grad()
def score(model: nn.Module, task: Task, x: Array, y: Array, device: str = "cpu") -> Scores:
    """The model on the examples."""
    was_training = model.training
    model.eval()
    parts, loss = [], 0.0
    for start in range(0, len(y), _BATCH):
        rows = slice(start, start + _BATCH)
        inputs, targets = on_device(task.collate(opened(x[rows]), opened(y[rows])), device)
        outputs = task.forward(model, inputs)
        loss += float(task.loss(outputs, targets)) * len(y[rows])
        parts.append(task.scored(outputs, targets))
    model.train(was_training)
    kept = tuple(np.concatenate(part) for part in zip(*parts, strict=True))
    return Scores(task, kept, loss / len(y))

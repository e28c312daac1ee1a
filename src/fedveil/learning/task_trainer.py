"""Training by what a task says: the loop that takes any batch, loss, optimiser and step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil._arrays import Float32s
from fedveil.example_arrays import opened
from fedveil.learning.device import seed_torch
from fedveil.learning.learning_task import Task, Tensors
from fedveil.learning.trainer import ClientData, Trained, TrainingPlan
from fedveil.learning.weight_layout import Layout


class TaskTrainer:
    """One client after another, through the task's own `train`."""

    chunk = least = 1

    def __init__(
        self, model: nn.Module, plan: TrainingPlan, task: Task, device: str = "cpu"
    ) -> None:
        self._device = torch.device(device)
        self._plan, self._task = plan, task
        self._model = model.to(self._device)
        self._layout = Layout(self._model)
        self._row = np.empty((1, self._layout.dimension), np.float32)
        self._weights = np.empty(0, np.float32)

    def start(self, weights: Float32s) -> None:
        self._weights = weights

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        start = torch.from_numpy(self._weights).to(self._device)
        for client in clients:
            failure: Exception | None = None
            try:
                self._layout.write(start)
                self._model.train()
                seed_torch(client.torch_seed(), self._device)
                self._task.train(self._model, self._batches(client), self._plan)
                self._layout.change(self._weights, self._row[0])
            except Exception as error:  # the user's model or task may raise anything
                failure = error
            yield self._row, [failure]

    def _batches(self, client: ClientData) -> Iterator[tuple[Tensors, Tensors]]:
        x, y = client.rows
        for positions in client.batches(self._plan):
            inputs, targets = self._task.collate(opened(x[positions]), opened(y[positions]))
            yield on_device(inputs, self._device), on_device(targets, self._device)


def on_device(part: Any, device: torch.device | str) -> Any:
    """Tensors there, in what they came in; what is no tensor stays as it is."""
    if isinstance(part, torch.Tensor):
        return part.to(device)
    if isinstance(part, Mapping):
        return {name: on_device(value, device) for name, value in part.items()}
    if isinstance(part, tuple | list):
        return type(part)(on_device(value, device) for value in part)
    return part

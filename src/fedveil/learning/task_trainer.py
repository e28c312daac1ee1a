"""Trains with a user's own task, which defines batches, loss, optimiser and steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fedveil.base.example_arrays import opened
from fedveil.learning.device import seed_generators
from fedveil.learning.learning_task import Task, Tensors
from fedveil.learning.trainer import ClientData, OneByOne, TrainingPlan
from fedveil.learning.weight_layout import Layout


class TaskTrainer(OneByOne):
    """Trains clients one after another, each by calling the task's own `train`."""

    own_step = True

    def __init__(
        self, model: nn.Module, plan: TrainingPlan, task: Task, device: str = "cpu"
    ) -> None:
        self._plan, self._task = plan, task
        self._model = model.to(device)
        super().__init__(Layout(self._model), torch.device(device))

    def _train_one(self, start: torch.Tensor, client: ClientData) -> None:
        self._layout.write(start)
        self._model.train()
        seed_generators(client.torch_seed(), self._device)
        hooks = list(self._correcting(client.correction))
        try:
            self._task.train(self._model, self._batches(client), self._plan)
        finally:
            for hook in hooks:
                hook.remove()

    def _correcting(self, correction: torch.Tensor | None) -> Iterator[RemovableHandle]:
        if correction is None:
            return
        terms = self._layout.views(correction.to(self._device))
        for entry, term in zip(self._layout.entries, terms, strict=True):
            if entry.fate == "parameter":
                hook = partial(torch.add, term)
                yield entry.tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def _batches(self, client: ClientData) -> Iterator[tuple[Tensors, Tensors]]:
        x, y = client.rows
        for positions in client.batches(self._plan):
            inputs, targets = self._task.collate(opened(x[positions]), opened(y[positions]))
            yield on_device(inputs, self._device), on_device(targets, self._device)


def on_device(part: Any, device: torch.device | str) -> Any:
    if isinstance(part, torch.Tensor):
        return part.to(device)
    if isinstance(part, Mapping):
        return {name: on_device(value, device) for name, value in part.items()}
    if isinstance(part, tuple | list):
        make = getattr(type(part), "_make", type(part))  # a named tuple's
        return make(on_device(value, device) for value in part)
    return part

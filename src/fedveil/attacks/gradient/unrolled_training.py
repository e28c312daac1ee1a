"""A client's local training as a differentiable function of its examples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedveil.base.array_types import Float32s
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.trainer import TrainingPlan
from fedveil.learning.weight_layout import Layout


class UnrolledTraining:
    """Local training from given weights, as a differentiable function of the examples.

    The steps equal those of the client's trainer up to rounding, except for the order of examples,
    which only the client knows. Buffers stay fixed, and dropout is off.
    """

    def __init__(
        self, model: nn.Module, plan: TrainingPlan, weights: Float32s, device: str = "cpu"
    ) -> None:
        self.model = copy.deepcopy(model).to(device).train()
        fixed = TrainedPart.of(self.model).features
        if fixed is not None:
            fixed.eval()
        for module in self.model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        self.plan = plan
        self.layout = Layout(self.model)
        self.layout.write(torch.from_numpy(weights).to(device))

    def steps(self, count: int) -> int:
        return self.plan.epochs * -(-count // self.plan.batch_size)

    def update(self, x: Tensor, targets: Tensor, clients: int = 1) -> Tensor:
        """Return, as one vector, the mean update of `clients` clients that hold equal parts of `x`.

        Row i of `targets` is a distribution over the classes for example i.
        """
        parts = zip(x.chunk(clients), targets.chunk(clients), strict=True)
        return torch.stack([self._alone(*part) for part in parts]).mean(0)

    def _alone(self, x: Tensor, targets: Tensor) -> Tensor:
        parameters = [e for e in self.layout.entries if e.fate == "parameter"]
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        frozen = {n: p.data for n, p in self.model.named_parameters() if not p.requires_grad}
        start = [entry.tensor.detach() for entry in parameters]
        moved: list[Tensor | None] = [None] * len(start)
        rule = _adam if self.plan.optimizer == "adam" else _sgd
        advance = rule(self.plan, len(start))
        for rows in self._batches(len(x)):
            now = [_at(w, m) for w, m in zip(start, moved, strict=True)]
            named = {e.name: w for e, w in zip(parameters, now, strict=True)}
            logits = functional_call(self.model, named | frozen | buffers, (x[rows],))
            loss = nn.functional.cross_entropy(logits, targets[rows])
            gradients = torch.autograd.grad(loss, now, create_graph=True, allow_unused=True)
            steps = advance(now, gradients)
            moved = [_sum(m, step) for m, step in zip(moved, steps, strict=True)]
        by_name = {e.name: m for e, m in zip(parameters, moved, strict=True)}
        flat = []
        for entry in self.layout.entries:
            move = by_name.get(entry.name)
            flat.append(torch.zeros_like(entry.tensor) if move is None else move)
        return torch.cat([part.reshape(-1) for part in flat])

    def _batches(self, count: int) -> Iterator[slice]:
        for _ in range(self.plan.epochs):
            for first in range(0, count, self.plan.batch_size):
                yield slice(first, first + self.plan.batch_size)


def _at(start: Tensor, moved: Tensor | None) -> Tensor:
    return start.requires_grad_() if moved is None else start + moved


def _sum(moved: Tensor | None, step: Tensor | None) -> Tensor | None:
    if moved is None or step is None:
        return step if moved is None else moved
    return moved + step


Advance: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor | None]], list[Tensor | None]]


def _sgd(plan: TrainingPlan, count: int) -> Advance:
    """Return a function that computes a step of SGD, for a model with `count` weight tensors.

    It maps the weights and their gradients to the changes of the weights. It remembers the momentum
    between its calls. `plan` has the learning rate and other settings.
    """
    velocity: list[Tensor | None] = [None] * count

    def advance(
        weights: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            if gradient is not None:
                gradient = gradient + plan.weight_decay * weight if plan.weight_decay else gradient
                before = velocity[i]
                velocity[i] = gradient if before is None else plan.momentum * before + gradient
        return [None if v is None else -plan.lr * v for v in velocity]

    return advance


#: Keeps the derivative of a square root finite at zero.
_TINY = 1e-24


def _adam(plan: TrainingPlan, count: int) -> Advance:
    """Return a function that computes a step of Adam, for a model with `count` weight tensors.

    It maps the weights and their gradients to the changes of the weights. It remembers Adam's
    moments between its calls. `plan` has the learning rate and other settings.
    """
    first: list[Tensor | float] = [0.0] * count
    second: list[Tensor | float] = [0.0] * count
    taken = 0

    def advance(
        weights: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        nonlocal taken
        taken += 1
        steps: list[Tensor | None] = []
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            if gradient is None:
                steps.append(None)
                continue
            gradient = gradient + plan.weight_decay * weight if plan.weight_decay else gradient
            first[i] = mean = 0.9 * first[i] + 0.1 * gradient
            second[i] = square = 0.999 * second[i] + 0.001 * gradient**2
            size = (square / (1 - 0.999**taken) + _TINY).sqrt() + 1e-8
            steps.append(-plan.lr * mean / (1 - 0.9**taken) / size)
        return steps

    return advance

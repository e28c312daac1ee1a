"""Shared by the tests of the trainers: plans, clients, models, and a simple training loop."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from fedveil.entropy import Seeded
from fedveil.learning.trainer import ClientData, Trainer, TrainingPlan
from fedveil.learning.weight_layout import Layout


def plan(**changes: object) -> TrainingPlan:
    settings = {
        "epochs": 2,
        "batch_size": 4,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        **changes,
    }
    return TrainingPlan(**settings)  # type: ignore[arg-type]


def clients(shape: tuple[int, ...], classes: int, sizes: tuple[int, ...]) -> list[ClientData]:
    made = []
    for number, size in enumerate(sizes):
        draw = Seeded(0, "client", number).generator()
        x = torch.from_numpy(draw.random((size, *shape), dtype=np.float32))
        y = torch.from_numpy(draw.integers(0, classes, size))
        made.append(ClientData(x, y, Seeded(1, number)))
    return made


def by_torch(model: nn.Module, plan: TrainingPlan, client: ClientData) -> np.ndarray:
    """Train with a simple loop in torch."""
    model = copy.deepcopy(model).train()
    before = Layout(model).vector()
    adaptive = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adagrad": torch.optim.Adagrad,
    }
    origin = [parameter.detach().clone() for parameter in model.parameters()]
    if plan.optimizer in adaptive:
        optimizer: torch.optim.Optimizer = adaptive[plan.optimizer](
            model.parameters(), plan.lr, weight_decay=plan.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(
            model.parameters(),
            plan.lr,
            momentum=plan.momentum,
            weight_decay=plan.weight_decay,
            nesterov=plan.nesterov,
        )
    order = client.entropy.stream("order").generator()
    for _ in range(plan.epochs):
        positions = order.permutation(len(client.y))
        for start in range(0, len(positions), plan.batch_size):
            batch = positions[start : start + plan.batch_size]
            optimizer.zero_grad()
            y = client.y[batch]
            with torch.autocast("cpu", torch.bfloat16, enabled=plan.precision != "float32"):
                scores = model(client.x[batch])
            each = nn.functional.cross_entropy(scores.float(), y, reduction="none")
            weights = [1.0 if plan.class_weights is None else plan.class_weights[i] for i in y]
            loss = (torch.tensor(weights) * each).sum() / sum(weights)
            for parameter, w in zip(model.parameters(), origin, strict=True):
                loss = loss + plan.proximal / 2 * ((parameter - w) ** 2).sum()
            loss.backward()
            if plan.gradient_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), plan.gradient_norm)
            optimizer.step()
    return Layout(model).vector() - before


def train(trainer: Trainer, model: nn.Module, cohort: list[ClientData]) -> np.ndarray:
    trainer.start(Layout(model).vector())
    updates = []
    for start in range(0, len(cohort), trainer.chunk):
        for rows, failures in trainer.train(cohort[start : start + trainer.chunk]):
            assert not any(failures)
            updates.append(rows.copy())
    return np.concatenate(updates)


class Doubled(nn.Linear):
    """A layer that does more than its base class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def tied() -> nn.Module:
    """Return two layers that share one weight."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    return model

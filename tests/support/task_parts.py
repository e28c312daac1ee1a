"""User-defined tasks, models and data of every kind, for the tests of tasks."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

import fedveil
from fedveil.entropy import Seeded

WORDS, LABELS = 7, 3
DRAW = Seeded(0, "task data")


def _split(x: Any, y: Any, **more: Any) -> dict[str, Any]:
    cut = {k: (v[:120], v[120:]) for k, v in x.items()} if isinstance(x, dict) else None
    train = {k: v[0] for k, v in cut.items()} if cut else x[:120]
    test = {k: v[1] for k, v in cut.items()} if cut else x[120:]
    return {"x_train": train, "y_train": y[:120], "x_test": test, "y_test": y[120:], **more}


def slope() -> dict[str, Any]:
    """Return data in which two numbers are linear in four."""
    x = DRAW.stream("slope").generator().normal(size=(160, 4)).astype(np.float32)
    return _split(x, x @ np.array([[1.0, 0], [0, 2], [-1, 0], [0, 0.5]]) + 3)


def signs() -> dict[str, Any]:
    """Return data whose targets say which of an example's three numbers are positive."""
    x = DRAW.stream("signs").generator().normal(size=(160, 3)).astype(np.float32)
    return _split(x, x > 0)


def counting() -> dict[str, Any]:
    """Return tokens that count up and then start again."""
    x = (np.arange(160)[:, None] + np.arange(6)) % WORDS
    return {"x_train": x[:120], "x_test": x[120:]}


def uneven_counting() -> dict[str, Any]:
    """Return the counting tokens in lines of different lengths."""
    lines = [row[: 3 + i % 4] for i, row in enumerate(counting()["x_train"])]
    return {"x_train": lines, "x_test": lines[:30], "classes": WORDS}


def inputs() -> dict[str, Any]:
    """Return inputs of a number and some words. The class is the first word plus the number."""
    draw = DRAW.stream("inputs").generator()
    words = [draw.integers(0, LABELS, 1 + i % 3) for i in range(160)]
    turn = draw.integers(0, 2, 160)
    y = np.array([(word[0] + t) % LABELS for word, t in zip(words, turn, strict=True)])
    return _split({"turn": turn.astype(float), "words": words}, y)


class Words(nn.Module):
    """A model that takes the inputs by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(LABELS, 8)
        self.out = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, LABELS))

    def forward(self, turn: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.table(words[:, 0]), turn[:, None]], 1))


def words() -> nn.Module:
    return Words()


def linear(shape: Any, outputs: int) -> nn.Module:
    return nn.Linear(shape[0], outputs)


class Coder(nn.Module):
    """A model that returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.out = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        code = self.code(x)
        return {"out": self.out(code), "code": code}


def coded() -> nn.Module:
    return Coder()


def single() -> nn.Module:
    """Return a model with one output, whatever the targets are."""
    return nn.Linear(3, 1)


def tokens(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(outputs, 12), nn.Linear(12, outputs))


class Jittered(fedveil.Task):
    """A task whose batches get noise from the generators of NumPy, Python and PyTorch."""

    def collate(self, x: Any, y: Any) -> Any:
        inputs, targets = super().collate(x, y)
        self.drawn = np.random.normal(), random.gauss(0, 1), float(torch.randn(()))
        return inputs + 0.1 * sum(self.drawn), targets

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return (outputs - targets.float()).square().mean()


class Pinball(fedveil.Task):
    """A task that predicts the 90% quantile, and measures how often it holds."""

    measures: ClassVar = {"kept": "higher"}

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        over = targets[:, :1].float() - outputs
        return torch.maximum(0.9 * over, -0.1 * over).mean()

    def metrics(self, *scored: Any) -> dict[str, Any]:
        outputs, targets = scored
        return {"kept": (targets[:, 0] <= outputs[:, 0]).mean(), "each": list(outputs[:2, 0])}


class Coded(fedveil.Task):
    """A task for the outputs of `Coder`, with two numbers as the target."""

    targets: ClassVar = "numbers"

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        error = outputs["out"].sum(1) - targets.sum(1)
        return error.square().mean() + 0.01 * outputs["code"].square().mean()

    def metrics(self, *scored: Any) -> dict[str, Any]:
        shapes = [part.shape for part in scored]
        return {"rows": [rows for rows, _ in shapes], "columns": [width for _, width in shapes]}


class OwnStep(Pinball):
    """A task that takes two steps of Adam for each batch."""

    def optimizer(self, parameters: Any, plan: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=plan.lr)

    def train(self, model: nn.Module, batches: Any, plan: Any) -> None:
        for batch in batches:
            super().train(model, iter([batch, batch]), plan)


class Unsaid(Pinball):
    measures: ClassVar = {"missing": "higher"}


class Uneven(Pinball):
    """A task whose loss is one number per example."""

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return (outputs - targets[:, :1].float())[:, 0]


class Named(Pinball):
    def metrics(self, *scored: Any) -> dict[str, Any]:
        return {"kept": 1.0, "round": 7}


class Bare(fedveil.Task):
    """A task with a loss but no metrics."""

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return (outputs - targets).abs().mean()

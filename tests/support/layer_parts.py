"""Models of every kind on small images, for the tests of what trains each layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import fedveil
from fedveil.entropy import Seeded

CLASSES = 3
SHAPE = (2, 9, 7)


def images() -> dict[str, Any]:
    """Return images of two channels with random classes."""
    draw = Seeded(3, "small images").generator()
    x = draw.normal(size=(40, *SHAPE)).astype(np.float32)
    y = draw.integers(0, CLASSES, 40)
    return {"x_train": x[:25], "y_train": y[:25], "x_test": x[25:], "y_test": y[25:]}


def chain() -> nn.Sequential:
    """Return a chain of known layers. Its convolution is inside a chain of its own."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU()), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(30, 11), nn.Tanh(), nn.Linear(11, CLASSES),
    )  # fmt: skip


def mixed() -> nn.Sequential:
    """Return a chain with three layers that native code does not support, and others between."""
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, dilation=2), nn.Softplus(), nn.Conv2d(5, 4, 2), nn.ReLU(),
        nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def odd() -> nn.Sequential:
    """Return a chain with more layers of unknown kinds than a reason names."""
    unknown = [nn.Softplus(), nn.Mish(), nn.SELU(), nn.ELU(), nn.CELU()]
    return nn.Sequential(nn.Flatten(), *unknown, nn.Linear(126, CLASSES))


class Residual(nn.Module):
    """A residual net, whose body has a layer that native code does not support."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, groups=2), nn.ReLU())
        self.scale = nn.Parameter(torch.ones(2, 1, 1))
        self.head = nn.Linear(126, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head((x * self.scale + self.body(x)).flatten(1))
        return scores


class Reader(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(7, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.lstm(x.flatten(1, 2))[0][:, -1])
        return scores


class Failing(Residual):
    """A residual net that cannot train: it fails behind its body."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.body(x)
        raise RuntimeError("not today")


def half_frozen() -> nn.Module:
    """Return the known chain, whose first layers are frozen."""
    model = chain()
    model[0].requires_grad_(False)
    return model


def tied() -> nn.Module:
    """Return a chain with one layer at two places, and a curve at two places of unlike shapes."""
    curve, square = nn.ReLU(), nn.Linear(11, 11)
    return nn.Sequential(
        nn.Softplus(), curve, nn.Flatten(), nn.Linear(126, 11), square, curve, square,
        nn.Linear(11, CLASSES),
    )  # fmt: skip


def scripted() -> nn.Module:
    """Return a chain with a dense layer of TorchScript, and a layer before it that is too odd."""
    dense = torch.jit.script(nn.Linear(30, CLASSES))
    return nn.Sequential(nn.Conv2d(2, 5, 3), nn.MaxPool2d(2), nn.Softplus(), nn.Flatten(), dense)


def linear() -> nn.Module:
    """Return one dense layer on the whole image."""
    return nn.Sequential(nn.Flatten(), nn.Linear(126, CLASSES))


class Focal(fedveil.Task):
    """A task with a loss of its own."""

    targets = "class"

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        right = torch.softmax(outputs, 1).gather(1, targets[:, None])
        return (1 - right).square().mean()

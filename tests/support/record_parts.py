"""Data sets of a client's own function in which one record can be anything, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

import fedveil
from fedveil.base.example_arrays import Targets
from fedveil.entropy import Seeded

CLASSES, FEATURES, EXAMPLES, TOKENS = 3, 5, 31, 11
#: The next result of `data`.
HELD: dict[str, Any] = {}


def data() -> Any:
    """Return the data, as a client's own function."""
    return HELD["data"]


class Averaged(nn.Module):
    """A model that looks up whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x).mean(1))


class Hashed(Averaged):
    """A model that looks up ids by their remainder, for which every digit of an id counts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x % TOKENS)


class NextOf(nn.Module):
    """A model that scores the next token by the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, 4)
        self.head = nn.Linear(4, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x))


class Frozen(nn.Module):
    """A head on a frozen backbone that raises for large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(FEATURES, 7), Shy(), nn.Tanh())
        self.head = nn.Linear(7, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class Shy(nn.Module):
    """A layer that raises for large numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x.abs() > 1e6).any()):
            raise RuntimeError("too much for me")
        return x


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def dropped() -> nn.Module:
    """Return a model that draws random numbers for each example."""
    return nn.Sequential(nn.Linear(FEATURES, 9), nn.Dropout(0.4), nn.Tanh(), nn.Linear(9, CLASSES))


def frozen() -> nn.Module:
    return Frozen()


def averaged() -> nn.Module:
    return Averaged()


def hashed() -> nn.Module:
    return Hashed()


def next_of() -> nn.Module:
    return NextOf()


def one_number() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, 1))


def images() -> nn.Module:
    """Return a model whose fixed filters process many examples at once."""
    from fedveil.learning.oriented_filters import OrientedFilters

    filters = OrientedFilters((1, 8, 8))
    return nn.Sequential(filters, nn.Linear(filters.outputs, CLASSES))


class Ranked(fedveil.Task):
    """A user's own task with whole numbers as targets."""

    targets: ClassVar[Targets] = "own"

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets)


class Measured(fedveil.Task):
    """A user's own task with rows of numbers as targets."""

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return nn.functional.huber_loss(outputs, targets)


@dataclass(frozen=True)
class Kind:
    """A job's model and task, and records that fit them."""

    model: str
    task: str = "classification"
    x: str = "floats"
    y: str = "labels"
    training: tuple[tuple[str, Any], ...] = ()

    def records(self, count: int, seed: int) -> tuple[list[Any], list[Any]]:
        """Return `count` inputs and targets."""
        draw = Seeded(seed, "records").generator()
        most = {"tokens": TOKENS, "ids": 1 << 53, "long ids": 1 << 62}
        shape = {"floats": (FEATURES,), "images": (1, 8, 8)}.get(self.x, (6,))
        if self.x in most:
            x = draw.integers(0, most[self.x], (count, *shape))
        else:
            x = draw.normal(size=(count, *shape)).astype(np.float32)
        y = {
            "labels": draw.integers(0, CLASSES, count),
            "tokens": draw.integers(0, TOKENS, (count, 6)),
            "number": draw.normal(size=count),
            "bits": draw.integers(0, 2, (count, CLASSES)),
            "rows": draw.normal(size=(count, CLASSES)),
            "none": [None] * count,
        }[self.y]
        if self.y == "labels":
            y[:CLASSES] = np.arange(CLASSES)[:count]
        return list(x), list(y)


HEAD = (("train", "head"),)
KINDS = {
    "closed form": Kind("record_parts:linear"),
    "dropout": Kind("record_parts:dropped"),
    "weighted": Kind("record_parts:linear", training=(("class_weights", [0.5, 2.0, 1.0]),)),
    "fixed layers": Kind("record_parts:frozen", training=HEAD),
    "fixed filters": Kind("record_parts:images", x="images", training=HEAD),
    "table": Kind("record_parts:averaged", x="tokens"),
    "hashed ids": Kind("record_parts:hashed", x="ids"),
    "next token": Kind("record_parts:next_of", "next_token", x="tokens", y="tokens"),
    "lines": Kind("record_parts:next_of", "next_token", x="tokens", y="none"),
    "regression": Kind("record_parts:one_number", "regression", y="number"),
    "multilabel": Kind("record_parts:dropped", "multilabel", y="bits"),
    "own whole": Kind("record_parts:dropped", "record_parts:Ranked"),
    "own rows": Kind("record_parts:linear", "record_parts:Measured", y="rows"),
}

"""Small tasks for the tests of vertical training."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import nn

from fedveil.entropy import Seeded
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.task import Columns, initial

FEATURES, CLASSES = 6, 3


class Joint(nn.Module):
    """A linear layer over all of its inputs."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, outputs)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.cat(inputs, dim=1))


@cache
def drawn(subset: str, count: int) -> torch.Tensor:
    """Return the features of a subset."""
    values = Seeded(7, subset).generator().standard_normal((count, FEATURES))
    return torch.from_numpy(values.astype(np.float32))


class Bottoms:
    """Two followers' bottoms and a leader's top. Each party has its own order of the examples."""

    leader = "lead"
    followers = ("bank", "shop")
    classes: int | None = CLASSES
    unit: Literal["examples"] = "examples"
    units_per_example = 1
    train, test = 50, 20
    width = 8

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def split_model(self) -> SplitModel:
        def bottom(part: str) -> nn.Module:
            return initial(self.seed, part, lambda: nn.Sequential(nn.Linear(3, wide), nn.ReLU()))

        wide = self.width
        step = Optimizer("sgd", lr=0.2, momentum=0.5)
        top = initial(self.seed, "top", lambda: Joint(2 * wide, CLASSES))
        return SplitModel(
            [
                Part("left", "bank", ("data.x",), (wide,), bottom("left"), optimizer=step),
                Part("right", "shop", ("data.x",), (wide,), bottom("right"), optimizer=step),
                Part("top", "lead", ("left", "right"), (CLASSES,), top, optimizer=step),
            ],
            leader="lead",
        )

    def whole(self, subset: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all features and labels in the order of their ids."""
        x = drawn(subset, self.train if subset == "train" else self.test).clone()
        return x, (x[:, 0] > 0).long() + (x[:, 3] > 0.5).long()

    def owned(self, party: str, subset: str) -> Columns:
        x, y = self.whole(subset)
        ids = np.arange(len(x))
        if party == "lead":
            return Columns(ids, {}, y)
        order = Seeded(8, party, subset).permutation(len(x))
        half = x[:, :3] if party == "bank" else x[:, 3:]
        return Columns(ids[order], {"x": half[torch.from_numpy(order)].contiguous()})

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        return {
            "examples": len(labels),
            "correct": int((outputs.argmax(1) == labels).sum()),
            "loss_sum": float(nn.functional.cross_entropy(outputs, labels, reduction="sum")),
        }


class UShape(Bottoms):
    """The leader's embedding and head around a follower's backbone with dropout and BatchNorm."""

    followers = ("bank",)
    dropouts: tuple[float, ...] = (0.2,)

    def split_model(self) -> SplitModel:
        step = Optimizer("adam", lr=0.01)
        backbone = initial(
            self.seed,
            "backbone",
            lambda: nn.Sequential(
                nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), *map(nn.Dropout, self.dropouts)
            ),
        )
        embedding = initial(self.seed, "embedding", lambda: nn.Linear(FEATURES, 8))
        head = initial(self.seed, "head", lambda: nn.Linear(8, CLASSES))
        return SplitModel(
            [
                Part("embedding", "lead", ("data.x",), (8,), embedding, optimizer=step),
                Part("backbone", "bank", ("embedding",), (8,), backbone, optimizer=step),
                Part("head", "lead", ("backbone",), (CLASSES,), head, optimizer=step),
            ],
            leader="lead",
        )

    def owned(self, party: str, subset: str) -> Columns:
        if party == "bank":
            return Columns(np.empty(0, np.int64))
        x, y = self.whole(subset)
        return Columns(np.arange(len(x)), {"x": x}, y)


def bottoms(seed: int) -> Bottoms:
    return Bottoms(seed)


def u_shape(seed: int) -> UShape:
    return UShape(seed)


class Ragged(Bottoms):
    """`Bottoms` in which the shop lacks the last ten examples."""

    def owned(self, party: str, subset: str) -> Columns:
        held = super().owned(party, subset)
        if party != "shop" or subset != "train":
            return held
        keep = np.flatnonzero(held.ids < 40)
        return Columns(held.ids[keep], {"x": held.columns["x"][torch.from_numpy(keep)]})


def ragged(seed: int) -> Ragged:
    return Ragged(seed)


class Rare(Bottoms):
    """Labels of two unequally frequent classes, which the features do not tell."""

    train, test, classes = 61, 11, 2

    def whole(self, subset: str) -> tuple[torch.Tensor, torch.Tensor]:
        x, _ = super().whole(subset)
        labels = Seeded(4, subset, "rare").bernoulli(0.15, len(x))
        return x, torch.from_numpy(labels).long()


def rare(seed: int) -> Rare:
    return Rare(seed)


class Unsplit(Bottoms):
    """A task in which all parts are the leader's."""

    followers: tuple[str, ...] = ()

    def split_model(self) -> SplitModel:
        top = initial(self.seed, "top", lambda: nn.Linear(FEATURES, CLASSES))
        return SplitModel([Part("top", "lead", ("data.x",), (CLASSES,), top)], leader="lead")

    def owned(self, party: str, subset: str) -> Columns:
        x, y = self.whole(subset)
        return Columns(np.arange(len(x)), {"x": x}, y)


def unsplit(seed: int) -> Unsplit:
    return Unsplit(seed)


def unclassed(seed: int) -> Bottoms:
    task = Bottoms(seed)
    task.classes = None
    return task


def wider(seed: int) -> nn.Module:
    return nn.Linear(3, 5)


def narrow_top(seed: int) -> nn.Module:
    return Joint(13, CLASSES)

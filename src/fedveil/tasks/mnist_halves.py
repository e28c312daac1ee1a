"""`mnist_halves`: the follower `left` has the left half of each image, `right` the right half.

The model has three parts (part: owner <- inputs):

    left:  left   <- data.half     a convolution and a dense layer, then normalisation
    right: right  <- data.half     the same
    top:   leader <- left, right   two dense layers

The outputs that the followers send are normalised, so that about half of the values are above 0.
Their signs, which EmbeddingDP sends, are then informative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import numpy as np
import torch
from torch import nn

from fedveil.data.datasets import load
from fedveil.data.examples import Examples
from fedveil.tasks.scoring import ByLabel
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.task import Columns, Subset, Unit, check_party, initial
from fedveil.vertical.task_settings import HalvesSettings

#: The side of a square image, and the column at which its halves meet.
_SIDE, _MIDDLE = 28, 14
_CHANNELS = 16
_HIDDEN = 128
_OPTIMIZER = Optimizer("adam", lr=0.001)


class MnistHalves(ByLabel):
    """The task of classifying digits or clothes, with one half of each image per follower."""

    leader = "leader"
    followers: tuple[str, ...] = ("left", "right")
    classes: int | None = 10
    unit: Unit = "examples"
    units_per_example = 1
    numbered = True
    by_shape = (leader, *followers)

    def __init__(self, settings: HalvesSettings | None, seed: int) -> None:
        self._settings = HalvesSettings() if settings is None else settings
        self._seed = seed
        self._held: dict[str, dict[Subset, Columns]] = {}

    def split_model(self, here: Collection[str] | None = None) -> SplitModel:
        width = self._settings.width

        def made(name: str, owner: str, make: Callable[[], nn.Module]) -> nn.Module | None:
            return initial(self._seed, name, make) if here is None or owner in here else None

        parts = []
        for side in self.followers:
            bottom = made(side, side, partial(_bottom, width))
            parts.append(Part(side, side, ("data.half",), (width,), bottom, optimizer=_OPTIMIZER))
        top = made("top", self.leader, lambda: Joint(2 * width, _HIDDEN, 10))
        parts.append(Part("top", self.leader, self.followers, (10,), top, optimizer=_OPTIMIZER))
        return SplitModel(parts, leader=self.leader)

    def owned(self, party: str, subset: Subset) -> Columns:
        """Return a party's data of a subset, "train" or "test".

        A follower has its half of each image, [examples, 1, 28, 14]. The leader has the labels.
        """
        if party not in self._held:
            data = load(self._settings.data)
            self._held[party] = {
                "train": self._share(party, data.train, 0),
                "test": self._share(party, data.test, len(data.train)),
            }
        return self._held[party][subset]

    def _share(self, party: str, examples: Examples, first_id: int) -> Columns:
        ids = np.arange(first_id, first_id + len(examples))
        if party == self.leader:
            return Columns(ids, labels=torch.from_numpy(examples.y))
        check_party(self, party)
        half = slice(0, _MIDDLE) if party == "left" else slice(_MIDDLE, _SIDE)
        # A copy, so that the other half is freed with the images.
        return Columns(ids, {"half": torch.from_numpy(examples.x[..., half].copy())})


class Joint(nn.Module):
    """Dense layers on the outputs of several parts, which are joined into one vector."""

    def __init__(self, width: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),  # leaves bits unchanged
            nn.LayerNorm(width),
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, outputs),
        )

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = self.layers(torch.cat(given, dim=1))
        return joined


def _bottom(width: int) -> nn.Module:
    pooled = _CHANNELS * (_SIDE // 2) * (_MIDDLE // 2)
    return nn.Sequential(
        nn.Conv2d(1, _CHANNELS, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(pooled, width),
        nn.LayerNorm(width, elementwise_affine=False),
    )

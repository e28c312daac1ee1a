"""`tabular`: the leader and the follower `bank` hold features of the same rows; wide and deep.

    leader: leader_wide, leader_deep   ┐
    bank:   bank_wide,   bank_deep     ┴→  top: a linear layer of the wide parts plus a
                                           nonlinear one of the deep parts

Each owner describes a feature twice, from its own training rows alone: as an interval between
quantiles, one-hot, for the wide part, which is linear in it; and scaled to mean 0 and variance 1
for the deep part, a dense network.

Source: H.-T. Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, split by owners.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedveil.data.examples import holdout
from fedveil.errors import InvalidValue, MissingExtra
from fedveil.vertical.split import Optimizer, Part, SplitModel
from fedveil.vertical.tasks import Columns, Subset, Unit, initial, scoring
from fedveil.vertical.tasks.halves import Joint
from fedveil.vertical.tasks.settings import TabularSettings

Floats: TypeAlias = npt.NDArray[np.float64]

#: Features, and classes; None is a regression.
_TABLES: dict[str, tuple[int, int | None]] = {
    "breast_cancer": (30, 2),
    "wine": (13, 3),
    "diabetes": (10, None),
}
_HIDDEN = 64
_OPTIMIZER = Optimizer("adam", lr=0.001)


class Tabular:
    """One of scikit-learn's tables, the first half of its features with the leader.

    A row's id is its number in the table. The targets of diabetes are scaled to mean 0 and
    variance 1 over the training rows, so that a loss of 1 is that of always guessing the mean.
    """

    leader = "leader"
    followers: tuple[str, ...] = ("bank",)
    unit: Unit = "examples"
    units_per_example = 1

    def __init__(self, settings: TabularSettings | None, seed: int) -> None:
        self._settings = TabularSettings() if settings is None else settings
        self._seed = seed
        features, self.classes = _TABLES[self._settings.table]
        middle = features // 2
        self._features = {"leader": slice(0, middle), "bank": slice(middle, features)}

    def split_model(self) -> SplitModel:
        """Two parts for each owner, and the top."""
        width, scores = self._settings.width, self._settings.scores
        outputs = 1 if self.classes is None else self.classes
        parts = []
        for party, features in self._features.items():
            count = features.stop - features.start
            wide, deep = f"{party}_wide", f"{party}_deep"
            make_wide = partial(nn.Linear, count * self._settings.bins, scores, bias=False)
            parts += [
                self._part(wide, party, ("data.wide",), scores, make_wide),
                self._part(deep, party, ("data.deep",), width, partial(_deep, count, width)),
            ]
        inputs = tuple(part.name for part in parts)
        make_top = partial(_Top, 2 * scores, 2 * width, outputs)
        parts.append(self._part("top", self.leader, inputs, outputs, make_top))
        return SplitModel(parts, leader=self.leader)

    def _part(
        self,
        name: str,
        owner: str,
        inputs: tuple[str, ...],
        output: int,
        make: Callable[[], nn.Module],
    ) -> Part:
        module = initial(self._seed, name, make)
        return Part(name, owner, inputs, (output,), module, optimizer=_OPTIMIZER)

    def owned(self, party: str, subset: Subset) -> Columns:
        """The columns `wide` [rows, features · bins] and `deep` [rows, features] of an owner."""
        if party not in self._features:
            raise InvalidValue(f"party = {party!r} is not one of leader, bank")
        data, target = _table(self._settings.table)
        classes = target if self.classes else np.zeros_like(target)
        train, test = holdout(self._settings.table, classes)
        rows = train if subset == "train" else test
        own = data[:, self._features[party]]
        columns = {
            "wide": torch.from_numpy(_intervals(own[rows], own[train], self._settings.bins)),
            "deep": torch.from_numpy(_scaled(own[rows], own[train])),
        }
        labels = None
        if party == self.leader and self.classes:
            labels = torch.from_numpy(target[rows].astype(np.int64))
        elif party == self.leader:
            labels = torch.from_numpy(_scaled(target[rows], target[train]))
        return Columns(rows, columns, labels)

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy, or the mean squared error of a regression."""
        if self.classes is None:
            return scoring.regression_loss(outputs, labels)
        return scoring.classification_loss(outputs, labels)

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """loss_sum, examples, and correct or absolute_error_sum."""
        if self.classes is None:
            return scoring.regression_metrics(outputs, labels)
        return scoring.classification_metrics(outputs, labels)


class _Top(nn.Module):
    """Outputs that are linear in the wide scores, plus a network of what the deep parts give."""

    def __init__(self, scores: int, width: int, outputs: int) -> None:
        super().__init__()
        self.wide = nn.Linear(scores, outputs)
        self.deep = Joint(width, _HIDDEN, outputs)

    def forward(
        self,
        leader_wide: torch.Tensor,
        leader_deep: torch.Tensor,
        bank_wide: torch.Tensor,
        bank_deep: torch.Tensor,
    ) -> torch.Tensor:
        """The outputs [rows, outputs]."""
        scores: torch.Tensor = self.wide(torch.cat((leader_wide, bank_wide), dim=1))
        outputs: torch.Tensor = scores + self.deep(leader_deep, bank_deep)
        return outputs


def _deep(features: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(features, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, width),
        nn.LayerNorm(width, elementwise_affine=False),
    )


def _table(name: str) -> tuple[Floats, Floats]:
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingExtra("scikit-learn", "torch", f"the table {name}") from None
    bunch: Any = getattr(datasets, f"load_{name}")()
    return bunch.data, bunch.target


def _scaled(rows: Floats, train: Floats) -> npt.NDArray[np.float32]:
    """Mean 0 and variance 1 over the training rows; no feature of these tables is constant."""
    scaled: Floats = (rows - train.mean(axis=0)) / train.std(axis=0)
    return scaled.astype(np.float32)


def _intervals(rows: Floats, train: Floats, bins: int) -> npt.NDArray[np.float32]:
    """Which interval between the training rows' quantiles holds each feature, one-hot."""
    edges = np.quantile(train, np.arange(1, bins) / bins, axis=0)
    places = (rows[:, np.newaxis] >= edges).sum(axis=1)  # [rows, features]
    hot = np.zeros((*places.shape, bins), np.float32)
    np.put_along_axis(hot, places[..., np.newaxis], 1, axis=2)
    flat: npt.NDArray[np.float32] = hot.reshape(len(rows), -1)
    return flat

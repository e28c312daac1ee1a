"""`tabular`: a wide-and-deep model. Leader and follower `bank` have different features of a table.

    leader: leader_wide, leader_deep   ┐
    bank:   bank_wide,   bank_deep     ┴→  top

Each party encodes a feature twice, from its own training rows alone. For the wide part, a value
becomes the index of its interval between quantiles. For the deep part, the feature is scaled to
mean 0 and variance 1.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.array_types import Array
from fedveil.data.examples import holdout
from fedveil.errors import MissingExtra
from fedveil.tasks.scoring import ByLabel
from fedveil.tasks.tables.disk_columns import narrowest
from fedveil.tasks.wide_and_deep import Features, wide_and_deep
from fedveil.vertical.split import SplitModel
from fedveil.vertical.task import Columns, Subset, Unit, check_party
from fedveil.vertical.task_settings import TabularSettings

Floats: TypeAlias = npt.NDArray[np.float64]

#: Each table's number of features and number of classes. None stands for a regression.
_TABLES: dict[str, tuple[int, int | None]] = {
    "breast_cancer": (30, 2),
    "wine": (13, 3),
    "diabetes": (10, None),
}


class Tabular(ByLabel):
    """One of scikit-learn's tables. The leader has the first half of the features, `bank` the rest.

    The targets of the table `diabetes` are scaled to mean 0 and variance 1 over the training rows.
    """

    leader = "leader"
    followers: tuple[str, ...] = ("bank",)
    unit: Unit = "examples"
    units_per_example = 1
    numbered = True
    by_shape = (leader, *followers)

    def __init__(self, settings: TabularSettings | None, seed: int) -> None:
        self._settings = TabularSettings() if settings is None else settings
        self._seed = seed
        features, self.classes = _TABLES[self._settings.table]
        middle = features // 2
        self._features = {"leader": slice(0, middle), "bank": slice(middle, features)}

    def in_own_unit(self, scaled: Array) -> Floats:
        target = _table(self._settings.table)[1]
        train = target[self._rows("train")]
        numbers: Floats = scaled.astype(np.float64) * train.std() + train.mean()
        return numbers

    def split_model(self, here: Collection[str] | None = None) -> SplitModel:
        bins = self._settings.bins
        owners = {
            party: Features((bins,) * (held.stop - held.start))
            if here is None or party in here
            else None
            for party, held in self._features.items()
        }
        return wide_and_deep(
            self._settings,
            owners,
            leader=self.leader,
            classes=self.classes,
            seed=self._seed,
            here=here,
        )

    def owned(self, party: str, subset: Subset) -> Columns:
        """Return a party's data of a subset, "train" or "test".

        The columns are `numbers` (scaled) and `intervals`, both [rows, features]. Only the leader
        has labels.
        """
        check_party(self, party)
        data, target = _table(self._settings.table)
        train, rows = self._rows("train"), self._rows(subset)
        own = data[:, self._features[party]]
        columns = {
            "intervals": _intervals(own[rows], own[train], self._settings.bins),
            "numbers": torch.from_numpy(_scaled(own[rows], own[train])),
        }
        labels = None
        if party == self.leader and self.classes:
            labels = torch.from_numpy(target[rows].astype(np.int64))
        elif party == self.leader:
            labels = torch.from_numpy(_scaled(target[rows], target[train]))
        return Columns(rows, columns, labels)

    def _rows(self, subset: Subset) -> npt.NDArray[np.int64]:
        target = _table(self._settings.table)[1]
        train, test = holdout(
            self._settings.table, target if self.classes else np.zeros_like(target)
        )
        return train if subset == "train" else test


@cache
def _table(name: str) -> tuple[Floats, Floats]:
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingExtra("scikit-learn", "torch", f"the table {name}") from None
    bunch: Any = getattr(datasets, f"load_{name}")()
    return bunch.data, bunch.target


def _scaled(rows: Floats, train: Floats) -> npt.NDArray[np.float32]:
    """Return `rows` scaled so that each feature has mean 0 and variance 1 over `train`.

    No feature may be constant in `train`.
    """
    scaled: Floats = (rows - train.mean(axis=0)) / train.std(axis=0)
    return scaled.astype(np.float32)


def _intervals(rows: Floats, train: Floats, bins: int) -> torch.Tensor:
    """Return the interval index of each value in `rows`, [rows, features].

    The `bins` intervals of a feature lie between its quantiles in `train`.
    """
    edges = np.quantile(train, np.arange(1, bins) / bins, axis=0)
    places = (rows[:, np.newaxis] >= edges).sum(axis=1)  # [rows, features]
    return torch.from_numpy(places.astype(narrowest(bins)))

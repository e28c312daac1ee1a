"""One party's rows of the examples that all parties hold, in the order that all agreed on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid
from fedveil.vertical.step import Batch
from fedveil.vertical.task import Columns

Positions = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]


def align(ids: Mapping[str, Ids], leader: str) -> dict[str, Positions]:
    """Where each party has the examples that all parties hold, in the leader's order.

    A party without ids has no data and takes part in all of them; if it is the leader, the order
    is that of the first party that has some.
    """
    parties = [party for party in (leader, *ids) if len(ids[party])]
    if not parties:
        raise DataInvalid("no party holds any example")
    kinds = {ids[party].dtype.kind == "U" for party in parties}
    if len(kinds) > 1:
        raise DataInvalid("some parties' ids are texts and others' are whole numbers")
    common = ids[parties[0]]
    for party in parties[1:]:
        common = common[np.isin(common, ids[party])]
    if not len(common):
        raise DataInvalid(f"no example is held by all of {', '.join(dict.fromkeys(parties))}")
    found = dict.fromkeys(ids, np.arange(len(common)))
    for party in parties:
        order = np.argsort(ids[party], kind="stable")
        found[party] = order[np.searchsorted(ids[party], common, sorter=order)]
    return found


@dataclass(frozen=True, eq=False)
class Rows:
    """A subset's examples in the agreed order, as one party holds them.

    A party without data has `count` rows and no columns. `ids` are those of the party's own rows;
    none where it has no data.
    """

    count: int
    columns: Mapping[str, torch.Tensor]
    labels: torch.Tensor | None
    ids: Ids

    @classmethod
    def aligned(cls, owned: Columns, wanted: tuple[str, ...], positions: Positions) -> Rows:
        """The rows of `owned` at `positions`, of the columns that the party's parts read."""
        missing = [name for name in wanted if name not in owned.columns]
        if missing:
            known = ", ".join(owned.columns) or "none"
            raise DataInvalid(f"the column {missing[0]} is read, and the columns are {known}")
        if not len(owned):
            return cls(len(positions), {}, None, owned.ids)
        columns, labels = {name: owned.columns[name] for name in wanted}, owned.labels
        if not np.array_equal(positions, np.arange(len(owned))):  # else nothing is copied
            index = torch.from_numpy(positions)
            columns = {name: column[index] for name, column in columns.items()}
            labels = None if labels is None else labels[index]
        return cls(len(positions), columns, labels, owned.ids[positions])

    def batch(self, positions: Positions) -> Batch:
        index = torch.from_numpy(positions)
        return Batch(
            positions,
            {name: column[index] for name, column in self.columns.items()},
            None if self.labels is None else self.labels[index],
        )

    def fingerprint(self) -> bytes:
        digest = hashlib.sha256(f"{self.count} {self.ids.dtype}".encode())
        digest.update(np.ascontiguousarray(self.ids).view(np.uint8).data)
        named = dict(self.columns) if self.labels is None else {**self.columns, "": self.labels}
        for name, tensor in sorted(named.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(raw.numpy().data)
        return digest.digest()


@dataclass(frozen=True)
class Order:
    """Which examples are trained on in which step: the same for all parties.

    Every epoch goes through all examples once, in an order of its own that the seed decides; its
    last step may be short. Steps are numbered from 1, epochs from 0.
    """

    seed: int
    count: int
    batch_size: int

    @property
    def steps(self) -> int:
        return -(-self.count // self.batch_size)

    def of_step(self, step: int) -> Positions:
        epoch, within = divmod(step - 1, self.steps)
        order = _epoch(self.seed, self.count, epoch)
        return order[within * self.batch_size : (within + 1) * self.batch_size]

    def in_turn(self) -> list[Positions]:
        """All examples once, as they stand."""
        return np.split(np.arange(self.count), range(self.batch_size, self.count, self.batch_size))


@lru_cache(maxsize=2)  # of parties in one process, some may be an epoch ahead
def _epoch(seed: int, count: int, number: int) -> Positions:
    return Seeded(seed, "order", number).permutation(count)

"""One party's rows of the examples that all parties have, in an order that all of them use."""

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
from fedveil.errors import DataInvalid, FewCommon
from fedveil.vertical.step import Batch
from fedveil.vertical.task import Columns

#: The number of rows read from disk at a time.
_AT_ONCE = 1 << 16

#: A warning is given if fewer than 1 in `LITTLE` of a party's own ids are common.
LITTLE = 10

Positions = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]


def align(ids: Mapping[str, Ids], leader: str) -> dict[str, Positions]:
    """Return the positions of the common examples in each party's data, in the leader's order.

    `ids` has each party's ids. A party without ids has no data, and its parts run on all common
    examples. If the leader has no ids, the first party with ids determines the order. Raises
    FewCommon if no example is common, and DataInvalid if no party has ids or their types differ.
    """
    parties = [party for party in (leader, *ids) if len(ids[party])]
    if not parties:
        raise DataInvalid("no party has any example")
    kinds = {ids[party].dtype.kind == "U" for party in parties}
    if len(kinds) > 1:
        raise DataInvalid("some parties' ids are texts and others' are whole numbers")
    common = ids[parties[0]]
    for party in parties[1:]:
        common = common[np.isin(common, ids[party])]
    if not len(common):
        raise FewCommon(f"no example is common to all of {', '.join(dict.fromkeys(parties))}")
    found = dict.fromkeys(ids, np.arange(len(common)))
    for party in parties:
        order = np.argsort(ids[party], kind="stable")
        found[party] = order[np.searchsorted(ids[party], common, sorter=order)]
    return found


def with_hint(sentence: str, hint: str) -> str:
    return f"{sentence}; {hint}" if hint else sentence


@dataclass(frozen=True, eq=False)
class Rows:
    """One party's examples of a subset, such as "train", in the order that all parties use.

    A party without data has `count` rows, and neither columns nor ids. `stored` has whole columns,
    possibly on disk, and `at` the positions of the examples in these columns. If `at` is None, row
    n of a column is example n.
    """

    count: int
    stored: Mapping[str, torch.Tensor]
    labels: torch.Tensor | None
    ids: Ids
    at: Positions | None = None

    @classmethod
    def aligned(cls, owned: Columns, wanted: tuple[str, ...], positions: Positions) -> Rows:
        """Return the rows of `owned` at `positions`, with only the columns `wanted`.

        Raises DataInvalid if `owned` does not have a wanted column.
        """
        missing = [name for name in wanted if name not in owned.columns]
        if missing:
            known = ", ".join(owned.columns) or "none"
            raise DataInvalid(f"a part reads the column {missing[0]}, but the columns are {known}")
        if not len(owned):
            return cls(len(positions), {}, None, owned.ids)
        columns, labels = {name: owned.columns[name] for name in wanted}, owned.labels
        if np.array_equal(positions, np.arange(len(owned))):
            return cls(len(positions), columns, labels, owned.ids)
        labels = None if labels is None else labels[torch.from_numpy(positions)]
        return cls(len(positions), columns, labels, owned.ids[positions], positions)

    @property
    def columns(self) -> Mapping[str, torch.Tensor]:
        return self._taken(np.arange(self.count))

    def batch(self, positions: Positions) -> Batch:
        labels = None if self.labels is None else self.labels[torch.from_numpy(positions)]
        return Batch(positions, self._taken(positions), labels)

    def _taken(self, positions: Positions) -> dict[str, torch.Tensor]:
        index = torch.from_numpy(positions if self.at is None else self.at[positions])
        # Several times as fast as column[index].
        return {name: column.index_select(0, index) for name, column in self.stored.items()}

    def fingerprint(self) -> bytes:
        digest = hashlib.sha256(f"{self.count} {self.ids.dtype}".encode())
        digest.update(np.ascontiguousarray(self.ids).view(np.uint8).data)
        if self.labels is not None:
            _add(digest, "", self.labels)
        for name, column in sorted(self.stored.items()):
            _add(digest, name, column, self.at)
        return digest.digest()


def _add(digest: Any, name: str, tensor: torch.Tensor, at: Positions | None = None) -> None:
    """Update `digest` with a column: its `name`, and the rows of `tensor` at the positions `at`.

    If `at` is None, all rows are used.
    """
    count = len(tensor) if at is None else len(at)
    digest.update(f"{name} {tensor.dtype} {(count, *tensor.shape[1:])}\n".encode())
    for start in range(0, count, _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        rows = tensor[some] if at is None else tensor[torch.from_numpy(at[some])]
        digest.update(rows.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


@dataclass(frozen=True)
class Order:
    """The examples of each training step, equal for all parties.

    `aside` of the `count` examples are set aside: no step uses them. The `seed` determines which
    these are, and the order of each epoch. An epoch uses each of the remaining examples once, in
    steps of `batch_size` examples. Its last step may have fewer. Steps are numbered from 1, epochs
    from 0.
    """

    seed: int
    count: int
    batch_size: int
    aside: int = 0

    @property
    def steps(self) -> int:
        return -(-(self.count - self.aside) // self.batch_size)

    @property
    def set_aside(self) -> Positions:
        """Return the positions of the examples that are in no step, in ascending order."""
        return _parted(self.seed, self.count, self.aside)[0]

    @property
    def trained(self) -> Positions:
        """Return the positions of the examples that every epoch uses, in ascending order."""
        return _parted(self.seed, self.count, self.aside)[1]

    def of_step(self, step: int) -> Positions:
        epoch, within = divmod(step - 1, self.steps)
        order = _epoch(self.seed, self.count, epoch, self.aside)
        return order[within * self.batch_size : (within + 1) * self.batch_size]

    def in_turn(self) -> list[Positions]:
        return np.split(np.arange(self.count), range(self.batch_size, self.count, self.batch_size))


@lru_cache(maxsize=2)  # in one process, a party may be an epoch ahead
def _epoch(seed: int, count: int, number: int, aside: int) -> Positions:
    trained = _parted(seed, count, aside)[1]
    return trained[Seeded(seed, "order", number).permutation(len(trained))]


@lru_cache(maxsize=2)
def _parted(seed: int, count: int, aside: int) -> tuple[Positions, Positions]:
    drawn = Seeded(seed, "set aside").permutation(count) if aside else np.arange(count)
    return np.sort(drawn[:aside]), np.sort(drawn[aside:])

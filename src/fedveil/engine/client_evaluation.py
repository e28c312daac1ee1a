"""How good a run's model is for each client, on examples of its own that nobody trains on.

A simulation sees these figures; of a deployed job they would leave the clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedveil.base.arrays import Array, Float64s
from fedveil.data.examples import Examples
from fedveil.data.partition import Partition
from fedveil.errors import TaskInvalid
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import Task
from fedveil.learning.trained_part import TrainedPart
from fedveil.record.metric_names import Better

#: The keys of a record: the mean over clients, that of the worst tenth, and how far they lie apart.
CLIENTS = ("clients_mean", "clients_worst_tenth", "clients_spread")


@dataclass(frozen=True)
class HeldOut:
    """The examples that clients hold, and which of them are held out."""

    examples: Examples
    shares: Partition


class ClientTest:
    """All clients' held-out examples, put to the model together."""

    def __init__(self, part: TrainedPart, task: Task, held: HeldOut, device: str) -> None:
        if not task.measures:
            raise TaskInvalid(
                "evaluation.clients shows each client's figure, and the task's measures name none"
            )
        self._part, self._task, self._device = part, task, device
        self._held = held
        self._name, self.better = next(iter(task.measures.items()))

    @cached_property
    def _rows(self) -> tuple[Array, Array]:
        rows, examples = self._held.shares.indices, self._held.examples
        x, y = examples.x[rows], examples.y[rows]
        if examples.usable is None:
            return self._part.seen(x, self._device), y
        return self._part.seen_apart(x, examples.usable[rows], self._device)[0], y

    def quality(self) -> dict[str, float]:
        """The figures of a record, of the weights that the model has."""
        scores = score(self._part.module, self._task, *self._rows)
        ends = self._held.shares.offsets
        owned = [np.arange(*pair) for pair in pairwise(ends)]
        each = [float(scores.of(rows)[self._name]) for rows in owned if len(rows)]
        return summary(np.array(each), self.better)

    def figure(self, client: int) -> float:
        """That of one client alone; not a number where it holds nothing out."""
        start, end = map(int, self._held.shares.offsets[client : client + 2])
        if start == end:
            return math.nan
        x, y = (rows[start:end] for rows in self._rows)
        found = score(self._part.module, self._task, x, y).figures()
        return float(found[self._name])


def summary(each: Float64s, better: Better) -> dict[str, float]:
    """Of clients' figures; those that are not numbers say nothing."""
    known = np.sort(each[~np.isnan(each)])
    if not len(known):
        return dict.fromkeys(CLIENTS, math.nan)
    tenth = math.ceil(len(known) / 10)
    worst = known[:tenth] if better == "higher" else known[-tenth:]
    return dict(zip(CLIENTS, map(float, (known.mean(), worst.mean(), known.std())), strict=True))

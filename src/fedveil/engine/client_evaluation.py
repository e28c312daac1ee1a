"""Tests a run's model on each client's held-out examples, on which no client trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedveil.base.array_types import Array, Float64s
from fedveil.data.examples import Examples
from fedveil.data.partition import Partition
from fedveil.errors import TaskInvalid
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import Task
from fedveil.learning.trained_part import TrainedPart
from fedveil.record.metric_names import Better

#: Keys of a record: the mean over clients, the mean of the worst tenth, the standard deviation.
CLIENTS = ("clients_mean", "clients_worst_tenth", "clients_spread")


@dataclass(frozen=True)
class HeldOut:
    """The training examples, and for each client the indices of its held-out examples."""

    examples: Examples
    shares: Partition


class ClientTest:
    """Tests the model on the held-out examples of all clients at once."""

    def __init__(self, part: TrainedPart, task: Task, held: HeldOut, device: str) -> None:
        if not task.measures:
            raise TaskInvalid(
                "evaluation.clients needs a figure per client. Name one in the task's `measures`"
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
        """Return the task's first metric, summarised over the clients (`summary`)."""
        if not len(self._held.shares.indices):  # no held-out example is usable
            return summary(np.zeros(0), self.better)
        scores = score(self._part.module, self._task, *self._rows)
        ends = self._held.shares.offsets
        owned = [np.arange(*pair) for pair in pairwise(ends)]
        each = [float(scores.of(rows)[self._name]) for rows in owned if len(rows)]
        return summary(np.array(each), self.better)

    def figure(self, client: int) -> float:
        """Return the task's first metric on a client's held-out examples, NaN without any."""
        start, end = map(int, self._held.shares.offsets[client : client + 2])
        if start == end:
            return math.nan
        x, y = (rows[start:end] for rows in self._rows)
        found = score(self._part.module, self._task, x, y).figures()
        return float(found[self._name])


def summary(each: Float64s, better: Better) -> dict[str, float]:
    """Return the mean of `each`, the mean of the worst tenth, and the standard deviation, by name.

    `each` has one value per client, and `better` says if higher or lower values are better. NaN
    values are ignored. If all are NaN, so are the results.
    """
    known = np.sort(each[~np.isnan(each)])
    if not len(known):
        return dict.fromkeys(CLIENTS, math.nan)
    tenth = math.ceil(len(known) / 10)
    worst = known[:tenth] if better == "higher" else known[-tenth:]
    return dict(zip(CLIENTS, map(float, (known.mean(), worst.mean(), known.std())), strict=True))

"""Tests a run's model on each client's held-out examples, on which no client trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedveil.base.array_types import Array, Float64s, Int64s
from fedveil.data.examples import Examples
from fedveil.data.partition import Partition
from fedveil.errors import TaskInvalid
from fedveil.learning.evaluate import Scores, score
from fedveil.learning.learning_task import Task
from fedveil.learning.trained_part import TrainedPart
from fedveil.record.metric_names import CLIENTS, Better


@dataclass(frozen=True)
class HeldOut:
    """The clients' held-out examples.

    `shares` has, for each client, the indices of its held-out examples in `examples`. `examples`
    also has the examples on which the clients train.
    """

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
    def _tested(self) -> tuple[Array, Array, Partition]:
        """The inputs, targets and partition of all held-out examples that can be used.

        The inputs are those of the trained layers. If the model begins with fixed layers, they are
        the output of the fixed layers. Client c has the rows offsets[c]:offsets[c + 1] of inputs
        and targets, where `offsets` is a field of the partition.
        """
        shares, examples = self._held.shares, self._held.examples
        rows = shares.indices
        x, y = examples.x[rows], examples.y[rows]
        if examples.usable is None:
            return self._part.inputs(x, self._device), y, shares
        x, usable = self._part.usable_inputs(x, examples.usable[rows], self._device)
        chosen = np.zeros(len(examples), np.bool_)
        chosen[rows[usable]] = True
        return x[usable], y[usable], shares.only(chosen)

    def _scored(self) -> tuple[Scores | None, Int64s]:
        """Return the scores of all held-out examples that can be used, and offsets.

        Client c has the scores offsets[c]:offsets[c + 1]. Under `privacy.unit: example`, examples
        for which the model or the task raises an error are left out. The scores are None if no
        example is left.
        """
        x, y, shares = self._tested
        if not len(y):
            return None, shares.offsets
        try:
            return score(self._part.module, self._task, x, y), shares.offsets
        except Exception:  # find out which examples fail
            if self._held.examples.usable is None:
                raise
        fits = np.array([self._fits(x[i : i + 1], y[i : i + 1]) for i in range(len(y))])
        found = score(self._part.module, self._task, x[fits], y[fits]) if fits.any() else None
        return found, np.append(0, np.cumsum(fits))[shares.offsets]

    def _fits(self, x: Array, y: Array) -> bool:
        try:
            score(self._part.module, self._task, x, y)
        except Exception:  # the user's model may raise anything
            return False
        return True

    def quality(self) -> dict[str, float]:
        """Return how the task's first metric is distributed over the clients.

        The metric is computed on each client's held-out examples. Clients without any are left out.
        The result has the mean, the mean of the worst tenth, and the standard deviation, with the
        names `CLIENTS` as keys. All are NaN if no client has a metric.
        """
        scores, ends = self._scored()
        if scores is None:
            return summary(np.zeros(0), self.better)
        owned = [np.arange(*pair) for pair in pairwise(ends)]
        each = [float(scores.of(rows)[self._name]) for rows in owned if len(rows)]
        return summary(np.array(each), self.better)

    def figure(self, client: int) -> float:
        """Return the task's first metric on `client`'s held-out examples. NaN if there are none."""
        x, y, shares = self._tested
        start, end = map(int, shares.offsets[client : client + 2])
        if start == end:
            return math.nan
        found = score(self._part.module, self._task, x[start:end], y[start:end]).figures()
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

"""Membership scores of examples, computed from one client's report.

A larger score means that the client is likelier to have trained on the example.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, jvp

from fedveil.base.array_types import Float32s, Float64s, Int64s
from fedveil.learning.weight_layout import Layout
from fedveil.protections.reading import Reading

_BATCH = 500
_Weights: TypeAlias = dict[str, torch.Tensor]
#: Scores labelled examples by one reading.
Scorer: TypeAlias = Callable[[Reading, Float32s, Int64s], Float64s]


class ReportScores:
    """Computes membership scores from the reports of a round that starts with `weights`."""

    def __init__(self, model: nn.Module, weights: Float32s) -> None:
        self._model = copy.deepcopy(model).cpu().eval()
        self._layout = Layout(self._model)
        self._weights = weights

    def along(self, reading: Reading, x: Float32s, y: Int64s) -> Float64s:
        """Return how fast the loss of each example falls along the update that `reading` estimates.

        The examples are the rows of `x` and `y`. The update's entries are weighted by their
        reliability, and the vector is scaled to norm 1. The result is the inner product of this
        vector with the example's negative gradient. It is 0 for all examples if the report reveals
        nothing.
        """
        weighted = reading.estimate * reading.weight
        norm = float(np.linalg.norm(weighted))
        if not norm:
            return np.zeros(len(y))
        start = self._views(self._weights)
        direction = self._views((weighted / norm).astype(np.float32))
        return self._of_batches(x, y, lambda losses: -jvp(losses, (start,), (direction,))[1])

    def moved(self, reading: Reading, x: Float32s, y: Int64s) -> Float64s:
        """Return by how much each example's loss falls if the estimated update is applied.

        The examples are the rows of `x` and `y`. `reading` must estimate the update's length as
        well as its direction. If it estimates nothing, all results are 0.
        """
        if reading.empty:
            return np.zeros(len(y))
        before = self._views(self._weights)
        after = self._views((self._weights + reading.estimate).astype(np.float32))
        return self._of_batches(x, y, lambda losses: losses(before) - losses(after))

    def _views(self, vector: Float32s) -> _Weights:
        views = self._layout.views(torch.from_numpy(vector))
        named = zip(self._layout.entries, views, strict=True)
        return {entry.name: view for entry, view in named}

    @torch.no_grad()
    def _of_batches(
        self,
        x: Float32s,
        y: Int64s,
        score: Callable[[Callable[[_Weights], torch.Tensor]], torch.Tensor],
    ) -> Float64s:
        parts = []
        for i in range(0, len(y), _BATCH):
            images, labels = (torch.from_numpy(part[i : i + _BATCH]) for part in (x, y))

            def losses(
                weights: _Weights, x: torch.Tensor = images, y: torch.Tensor = labels
            ) -> torch.Tensor:
                logits = functional_call(self._model, weights, (x,))
                return nn.functional.cross_entropy(logits, y, reduction="none")

            parts.append(score(losses).double().numpy())
        return np.concatenate(parts)


@dataclass(frozen=True)
class Round:
    """The attacker's estimates of one round's updates, and the examples that the attacker tests.

    Examples are given as row numbers. `readings[i]` is the estimate of client i's update, from its
    report. Client i trained on the rows `held[i]`. `strangers[i]` are rows that no client trained
    on, and that the attacker tests against client i's report. If single reports reveal nothing,
    `summed` is True: there is one estimate, from the mean of the reports, and all clients count as
    one.
    """

    readings: Sequence[Reading]
    held: Sequence[Int64s]
    strangers: Sequence[Int64s]
    summed: bool = False

    def scores(self, score: Scorer, x: Float32s, y: Int64s) -> tuple[Float64s, Float64s]:
        """Return the scores of the examples that clients trained on, and the scores of `strangers`.

        `score` computes the scores of examples, rows of `x` and `y`, from the estimate of an
        update. From an example's score, its mean score under the other clients' reports is
        subtracted.
        """
        members, others = [], []
        for i, (held, strangers) in enumerate(zip(self.held, self.strangers, strict=True)):
            asked = np.concatenate([held, strangers])
            scores = [score(reading, x[asked], y[asked]) for reading in self.readings]
            rest = [scored for j, scored in enumerate(scores) if j != i]
            mine = scores[i] - np.mean(rest, axis=0) if rest else scores[i]
            members.append(mine[: len(held)])
            others.append(mine[len(held) :])
        return np.concatenate(members), np.concatenate(others)

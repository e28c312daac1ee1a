"""Sums of some examples' returned gradients over a run's epochs, as an attacker would compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedveil.base.array_types import Array, Float64s, Int64s
from fedveil.vertical.step import Occasion


class GradientSums:
    """Adds up the gradients returned for the first examples of a run, separately for each part.

    Each micro-batch's gradients are divided by their root mean square norm, because gradients
    shrink as a model learns, and noise in proportion to their size shrinks with them. At most
    `examples` examples are followed, with at most `values` numbers in total.
    """

    def __init__(self, examples: int, values: int) -> None:
        self._examples, self._values = examples, values
        self._rows: dict[int, int] = {}
        self._sums: dict[str, Float64s] = {}
        self._labels: dict[int, Array] = {}
        self._times: dict[str, Int64s] = {}

    def add(self, part: str, rows: torch.Tensor, labels: torch.Tensor, occasion: Occasion) -> None:
        """Add a micro-batch's gradients of one part."""
        gradients = rows.detach().float().cpu().flatten(1).double().numpy()
        scale = float(np.sqrt((gradients**2).sum(axis=1).mean()))
        most = min(self._examples, max(1, self._values // gradients.shape[1]))
        for place, label in zip(occasion.positions.tolist(), labels.cpu().numpy(), strict=True):
            if place not in self._rows and len(self._rows) < most:
                self._rows[place] = len(self._rows)
                self._labels[place] = label
        chosen = [at for at, place in enumerate(occasion.positions.tolist()) if place in self._rows]
        if not chosen or not scale:
            return
        if part not in self._sums:
            self._sums[part] = np.zeros((most, gradients.shape[1]))
            self._times[part] = np.zeros(most, np.int64)
        to = [self._rows[int(occasion.positions[at])] for at in chosen]
        self._sums[part][to] += gradients[chosen] / scale
        self._times[part][to] += 1

    @property
    def repeated(self) -> bool:
        """Return True once an example's gradient has been returned more than once."""
        return any((times > 1).any() for times in self._times.values())

    @property
    def labels(self) -> Array:
        """Return the labels of the followed examples."""
        return np.array([self._labels[place] for place in self._rows])

    def of(self, parts: Sequence[str]) -> list[Float64s]:
        """Return the sums for each of `parts`, [examples, values]."""
        return [self._sums[part][: len(self._rows)] for part in parts]

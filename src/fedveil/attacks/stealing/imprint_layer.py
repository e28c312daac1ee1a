"""A first layer whose gradient holds single examples, and reading them off its change.

Fowl et al., "Robbing the Fed" (2022): every row of a linear layer measures the same statistic of an
example, and row j answers to examples whose statistic lies in its cell alone. The weight gradient
of a row is then the sum of delta * x over its cell's examples, its bias gradient the sum of delta:
of an example that is alone in its cell, their quotient is the example, exactly.

Two forms. `relu`: a row answers to all statistics above its threshold, and a cell is the difference
of two neighbouring rows; it needs no other layer than a Linear with a ReLU behind, and one local
step. `window`: a row answers between two bounds alone (Hardtanh), and the readout is so strong that
the first step which touches a row takes it out of its window, whatever comes: the row then keeps
what it has, through all further steps of a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from fedveil._arrays import Array, Bools, Float64s, Int64s
from fedveil._validate import integer
from fedveil.protections.reading import Reading

Form = Literal["relu", "window"]
#: What all activations together add to the logits at most, so that the labels alone decide delta.
_WHISPER = 1e-3


@dataclass(frozen=True)
class Cells:
    """What came back in every cell: sums of delta * x, and of delta; `known` where anything did.

    `noise` is the standard deviation of an entry, as the cells show it that no example reaches.
    """

    weights: Float64s
    biases: Float64s
    known: Bools
    noise: float

    def __len__(self) -> int:
        return len(self.biases)


@dataclass(frozen=True)
class Imprint:
    """Statistics [statistics, features] of an example, and the bounds of each one's cells, rising.

    A row of `edges` has one bound more than there are cells; the last cell is one that no example
    reaches, and shows what noise there is.
    """

    directions: Float64s
    edges: Float64s
    form: Form = "window"

    @classmethod
    def of(
        cls,
        public: Array,
        cells: int,
        statistics: int = 1,
        form: Form = "window",
        rng: np.random.Generator | None = None,
    ) -> Imprint:
        """`cells` for each of the statistics, equally likely by the law of `public` examples.

        The first statistic is the mean of all features; each further one is a random combination,
        drawn from `rng`.
        """
        integer("cells", cells, 1)
        flat = public.reshape(len(public), -1).astype(np.float64)
        directions = np.ones((statistics, flat.shape[1]))
        if statistics > 1:
            rng = np.random.default_rng(0) if rng is None else rng
            directions[1:] = rng.standard_normal((statistics - 1, flat.shape[1]))
        directions /= flat.shape[1]
        edges = [_edges(flat @ direction, cells) for direction in directions]
        return cls(directions, np.stack(edges), form)

    @property
    def statistics(self) -> int:
        """How many statistics there are."""
        return len(self.directions)

    @property
    def cells(self) -> int:
        """How many cells each statistic has, the one that nothing reaches included."""
        return int(self.edges.shape[1]) - 1

    @property
    def rows(self) -> int:
        """How many rows the layer has."""
        return self.statistics * (self.cells + (self.form == "relu"))

    @property
    def unreached(self) -> Bools:
        """Which cells no example reaches."""
        last = np.zeros((self.statistics, self.cells), np.bool_)
        last[:, -1] = True
        return last.ravel()

    def places(self, examples: Array) -> Int64s:
        """Which cell of each statistic an example is in: [examples, statistics]."""
        found = [
            np.searchsorted(edges, examples @ direction, side="right") - 1
            for direction, edges in zip(self.directions, self.edges, strict=True)
        ]
        inside = np.clip(np.stack(found, axis=1), 0, self.cells - 1)
        return np.asarray(inside + self.cells * np.arange(self.statistics), np.int64)

    def layer(self, whisper: float) -> tuple[Float64s, Float64s]:
        """The rows' weights and biases; `whisper` is the size of an activation."""
        if self.form == "window":
            width = np.diff(self.edges)
            slope, low = whisper / width, self.edges[:, :-1]
        else:
            spread = self.edges[:, -1] - self.edges[:, 0]
            low = self.edges
            slope = np.broadcast_to((whisper / spread)[:, None], low.shape)
        weights = slope[:, :, None] * self.directions[:, None, :]
        return weights.reshape(self.rows, -1), (-slope * low).ravel()

    def model(self, classes: int, gain: float) -> nn.Sequential:
        """The layer and a readout of strength `gain`, for examples of any shape.

        A step at rate lr over a batch of b changes the bias of an example's row by about
        gain * lr / b.
        """
        features = self.directions.shape[1]
        first, readout = nn.Linear(features, self.rows), nn.Linear(self.rows, classes)
        whisper = _WHISPER / (gain * self.rows)
        weights, biases = self.layer(whisper)
        signs = torch.ones(classes, 1)
        signs[1::2] = -1
        with torch.no_grad():
            first.weight.copy_(torch.from_numpy(weights))
            first.bias.copy_(torch.from_numpy(biases))
            readout.weight.copy_(gain * signs.expand_as(readout.weight))
            readout.bias.zero_()
        bound = nn.ReLU() if self.form == "relu" else nn.Hardtanh(0.0, whisper)
        return nn.Sequential(nn.Flatten(), first, bound, readout)

    def read(self, reading: Reading) -> Cells:
        """What a reading of a change of `model` holds in every cell."""
        features = self.directions.shape[1]
        stop = self.rows * features

        def rows(values: Array) -> tuple[Array, Array]:
            matrix = values[:stop].reshape(self.statistics, -1, features)
            vector = values[stop : stop + self.rows].reshape(self.statistics, -1)
            if self.form == "window":
                return matrix.reshape(-1, features), vector.ravel()
            if values.dtype == np.bool_:
                both = matrix[:, :-1] & matrix[:, 1:], vector[:, :-1] & vector[:, 1:]
            else:
                both = matrix[:, :-1] - matrix[:, 1:], vector[:, :-1] - vector[:, 1:]
            return both[0].reshape(-1, features), both[1].ravel()

        weights, biases = rows(reading.estimate)
        known, told = rows(reading.weight > 0)
        control, seen = weights[self.unreached], known[self.unreached]
        noise = float(np.sqrt(np.mean(control[seen] ** 2))) if seen.any() else 0.0
        return Cells(weights, np.where(told, biases, 0.0), known, noise)


def _edges(values: Float64s, cells: int) -> Float64s:
    """Bounds of equally likely cells, which rise; the outer ones hold what is beyond, by far."""
    inner = np.quantile(values, np.arange(1, cells) / cells)
    low, high = float(values.min()), float(values.max())
    spread = max(high - low, 1e-6)
    bounds = np.array([low - spread, *inner, high + spread, high + 2 * spread])
    rising = np.maximum.accumulate(bounds) + np.arange(len(bounds)) * 1e-9 * spread
    return np.asarray(rising, np.float64)

"""The imprint: a first layer whose gradient contains single examples, and its decoder.

Source: Fowl et al. 2022, "Robbing the Fed". A statistic is a number computed from an example, such
as its mean. The range of each statistic is divided into cells, and each cell has a neuron, that is,
a row of the layer's weights. The neuron is active for the examples x in its cell. The gradient of
its weights is the sum of delta * x over these x, where delta is the loss's derivative at the
neuron. The gradient of its bias is the sum of delta. If the cell holds a single example, the first
sum divided by the second is this example.

In the form `window`, a neuron is active only between the two bounds of its cell. A client's first
step on an example in the cell moves the neuron so far that it is active for no example any more. So
the client's further steps do not change the neuron. In the form `relu`, a neuron is active for all
examples whose statistic is above a threshold, and a cell's sums are the differences of two neurons'
sums. Then clients must make a single local step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Array, Bools, Float64s, Int64s
from fedveil.base.validate import integer
from fedveil.protections.reading import Reading

Form = Literal["relu", "window"]
#: Bound on all activations' effect on the logits, so that only the labels determine delta.
_WHISPER = 1e-3


@dataclass(frozen=True)
class Cells:
    """The gradient of an imprint: sums of delta * x and of delta over the examples x in each cell.

    An imprint is a layer that sorts examples into cells (`Imprint`). delta is the loss's derivative
    at a neuron that x activates. A row of `weights` is a cell's sum of delta * x, and an entry of
    `biases` its sum of delta. `known` marks the entries of `weights` that were reported. `noise` is
    the standard deviation of the noise in such an entry.
    """

    weights: Float64s
    biases: Float64s
    known: Bools
    noise: float

    def __len__(self) -> int:
        return len(self.biases)


@dataclass(frozen=True)
class Imprint:
    """A layer that sorts examples into cells, so that its gradient reveals single examples.

    Row s of `directions`, [statistics, features], computes statistic s of an example. Row s of
    `edges` has the ascending bounds of that statistic's cells.

    The last cell of each statistic, between its two largest bounds, measures the noise. It lies far
    above every public example from which the imprint was made (`of`), so the attack assumes that no
    client's example falls into it. Its gradient then consists only of the noise in a report.
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
        """Create an imprint from `public`, examples that resemble those of the clients.

        The imprint computes `statistics` statistics of an example. The first is the mean of all
        features. Each further one is a random combination of the features, drawn from `rng`
        (default: a generator with seed 0). Each statistic has `cells` cells, into which equally
        many of the `public` examples fall, and above them one more cell without any. With the
        `form` "window", a neuron responds to the examples of one cell. With "relu", it responds to
        all examples above a bound.
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
        return len(self.directions)

    @property
    def cells(self) -> int:
        """The number of cells of each statistic, with its last cell, which is assumed to be empty.

        The cells are the intervals into which the statistic's range is divided.
        """
        return int(self.edges.shape[1]) - 1

    @property
    def rows(self) -> int:
        return self.statistics * (self.cells + (self.form == "relu"))

    @property
    def unreached(self) -> Bools:
        """Return a mask of all cells that marks each statistic's last one, assumed to be empty."""
        last = np.zeros((self.statistics, self.cells), np.bool_)
        last[:, -1] = True
        return last.ravel()

    def places(self, examples: Array) -> Int64s:
        """Return the index of each example's cell for each statistic, [examples, statistics].

        The cells of all statistics are numbered consecutively.
        """
        found = [
            np.searchsorted(edges, examples @ direction, side="right") - 1
            for direction, edges in zip(self.directions, self.edges, strict=True)
        ]
        inside = np.clip(np.stack(found, axis=1), 0, self.cells - 1)
        return np.asarray(inside + self.cells * np.arange(self.statistics), np.int64)

    def layer(self, whisper: float) -> tuple[Float64s, Float64s]:
        """Return the layer's weights [rows, features] and biases [rows].

        For examples within the bounds, a row's output after the activation function is at most
        `whisper`, up to rounding.
        """
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
        """Return a classifier that consists of this layer, an activation and an output layer.

        The output layer has `classes` outputs, and its weights are `gain` or -`gain`. In a local
        step with learning rate lr on a batch of b examples, an example changes the bias of each
        neuron that it activates by about gain * lr / b.
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
        """Return each cell's gradient sums.

        `reading` is the attacker's estimate of an update of the model that begins with this layer.
        """
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
    """Return the bounds of `cells` + 1 cells, in ascending order.

    The first `cells` cells have equally many of the `values`. The last cell, above them, is empty.
    """
    inner = np.quantile(values, np.arange(1, cells) / cells)
    low, high = float(values.min()), float(values.max())
    spread = max(high - low, 1e-6)
    bounds = np.array([low - spread, *inner, high + spread, high + 2 * spread])
    rising = np.maximum.accumulate(bounds) + np.arange(len(bounds)) * 1e-9 * spread
    return np.asarray(rising, np.float64)

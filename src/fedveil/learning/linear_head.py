"""Clipped gradients of a model with one dense layer, in a closed form and in native code."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Float32s, Float64s, Int64s
from fedveil.base.kernels import compiled
from fedveil.learning.known_layers import plain_layers
from fedveil.learning.trainer import ClientData
from fedveil.learning.weight_layout import Layout

#: If the squared norm of the loss's gradient at the output is below this, the example contributes
#: nothing: the norm is too imprecise in float64, and a large learning rate could break the clip.
_LEAST = 1e-200


class LinearHead:
    """Computes clipped gradients of a model with one dense layer, in float64.

    A gradient's norm is the input's norm times the norm of the loss's gradient at the output. If
    the layer has biases, its input counts with one more entry, 1.
    """

    def __init__(
        self, weight: slice, bias: slice | None, layer: nn.Linear, *, flattens: bool
    ) -> None:
        self._weight, self._bias, self._flattens = weight, bias, flattens
        self._inputs, self._outputs = layer.in_features, layer.out_features

    @classmethod
    def of(cls, model: nn.Module, layout: Layout) -> LinearHead | None:
        """Return a `LinearHead` for a model of one dense layer, perhaps after a Flatten.

        Returns None for any other model. `layout` is the model's layout. Check with `takes` that
        the examples have a suitable shape.
        """
        plain = plain_layers(model, (nn.Linear, nn.Flatten, nn.Identity)) or ()
        layers = [m for m in plain if not isinstance(m, nn.Identity)]
        whole = all(
            isinstance(m, nn.Flatten) and (m.start_dim, m.end_dim) == (1, -1) for m in layers[:-1]
        )
        layer = layers[-1] if layers and whole else None
        if not isinstance(layer, nn.Linear):
            return None
        places = {id(entry.tensor): slice(entry.start, entry.stop) for entry in layout.entries}
        bias = None if layer.bias is None else places[id(layer.bias)]
        return cls(places[id(layer.weight)], bias, layer, flattens=len(layers) > 1)

    def takes(self, x: torch.Tensor) -> bool:
        """Return True if each of the examples `x` is a single row of the layer's inputs.

        An image has several rows. Without a Flatten, the layer would be applied to each of them.
        """
        return (self._flattens or x.ndim == 2) and math.prod(x.shape[1:]) == self._inputs

    def add(
        self,
        total: Float64s,
        weights: Float32s,
        client: ClientData,
        batch: Int64s,
        share: float,
        clip: float,
    ) -> None:
        """Add the clipped contributions of a client's examples, at the indices `batch`, to `total`.

        `weights` are the model's weights as a vector. `share` is lr / batch_size, and `clip` bounds
        the norm of a contribution. Leaves out examples that are not usable, whose label is out of
        range, or whose gradient is extremely small or not finite.
        """
        batch = batch if client.usable is None else batch[client.usable[batch]]
        x = client.x.reshape(len(client), -1).numpy()
        flat = weights.astype(np.float64)
        columns = np.ascontiguousarray(flat[self._weight].reshape(self._outputs, -1).T)
        bias = np.zeros(self._outputs) if self._bias is None else flat[self._bias]
        moved, moved_bias = np.zeros_like(columns), np.zeros_like(bias)
        one = 0.0 if self._bias is None else 1.0
        _add_linear(x, client.y.numpy(), batch, columns, bias, one, share, clip, moved, moved_bias)
        total[self._weight] += moved.T.reshape(-1)
        if self._bias is not None:
            total[self._bias] += moved_bias


def _add_linear_numpy(
    x: Float32s, y: Int64s, batch: Int64s, columns: Float64s, bias: Float64s, one: float,
    share: float, clip: float, moved: Float64s, moved_bias: Float64s
) -> None:  # fmt: skip
    for i in batch:
        if not 0 <= y[i] < len(bias):
            continue
        features = x[i].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = np.add.reduce(np.vstack([bias, features[:, None] * columns]), axis=0)
            square = float(np.cumsum(np.append(one, features * features))[-1])
            error = _error_numpy(scores, int(y[i]))
            length = float(np.cumsum(error * error)[-1])
            norm = math.sqrt(square * length)
        if length < _LEAST or not norm < math.inf:
            continue
        error *= -share if norm * share <= clip else -(clip / norm)
        moved += features[:, None] * error
        moved_bias += one * error


def _error_numpy(scores: Float64s, label: int) -> Float64s:
    powers = np.array([math.exp(score) for score in scores - scores.max()])
    error: Float64s = powers / np.cumsum(powers)[-1]
    error[label] -= 1.0
    return error


@compiled(_add_linear_numpy)
def _add_linear(
    x: Float32s, y: Int64s, batch: Int64s, columns: Float64s, bias: Float64s, one: float,
    share: float, clip: float, moved: Float64s, moved_bias: Float64s
) -> None:  # fmt: skip
    """Add the clipped contributions of the examples `batch` to `moved` and `moved_bias`.

    A contribution, -`share` times the gradient, is scaled down if its norm exceeds `clip`.
    `columns` has the layer's weights, and `bias` its biases. Both `columns` and `moved` have the
    shape (inputs, outputs). `one` is the input that the biases multiply: 1, or 0 without biases.
    """
    inputs, outputs = columns.shape
    error = np.empty(outputs)
    for i in batch:
        if not 0 <= y[i] < outputs:
            continue
        error[:] = bias
        square = one
        for j in range(inputs):
            feature = np.float64(x[i, j])
            square += feature * feature
            for k in range(outputs):
                error[k] += feature * columns[j, k]
        highest = error.max()
        total = 0.0
        for k in range(outputs):
            error[k] = math.exp(error[k] - highest)
            total += error[k]
        length = 0.0
        for k in range(outputs):
            error[k] /= total
            if k == y[i]:
                error[k] -= 1.0
            length += error[k] * error[k]
        norm = math.sqrt(square * length)
        if length < _LEAST or not norm < math.inf:
            continue
        factor = -share if norm * share <= clip else -(clip / norm)
        for k in range(outputs):
            error[k] *= factor
            moved_bias[k] += one * error[k]
        for j in range(inputs):
            feature = np.float64(x[i, j])
            for k in range(outputs):
                moved[j, k] += feature * error[k]

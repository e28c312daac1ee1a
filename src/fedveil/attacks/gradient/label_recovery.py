"""Recovery of a client's labels from its update of the model's last layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.base.array_types import Float64s, Int64s
from fedveil.learning.weight_layout import Layout
from fedveil.protections.reading import Reading

#: The bias entries of an exact gradient add up to zero, up to this share of their size.
_EXACT = 1e-3


@dataclass(frozen=True)
class LastLayer:
    """Positions of a model's last dense layer (weight, and bias if any) in the parameter vector.

    `inputs` is the mean input of this layer, and `guesses` the mean softmax of its outputs. Both
    means are over examples that the attacker considers typical.
    """

    weight: slice
    bias: slice | None
    inputs: Float64s
    guesses: Float64s

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module, probes: Tensor) -> LastLayer | None:
        """Return the last trainable dense layer if its outputs are the logits, else None.

        `probes` are typical examples. The means in the result are taken over them.
        """
        places = {id(e.tensor): slice(e.start, e.stop) for e in Layout(model).entries}
        layer = [m for m in model.modules() if isinstance(m, nn.Linear) and id(m.weight) in places]
        if not layer:
            return None
        caught: list[tuple[Tensor, Tensor]] = []
        hook = layer[-1].register_forward_hook(lambda _, x, y: caught.append((x[0], y)))
        try:
            logits = model(probes)
        finally:
            hook.remove()
        if not caught or caught[-1][1].ndim != 2 or not torch.equal(caught[-1][1], logits):
            return None
        bias = None if layer[-1].bias is None else places.get(id(layer[-1].bias))
        return cls(
            places[id(layer[-1].weight)],
            bias,
            caught[-1][0].double().mean(0).cpu().numpy(),
            logits.double().softmax(1).mean(0).cpu().numpy(),
        )


def error_of(reading: Reading, layer: LastLayer, count: int) -> Float64s:
    """Estimate each class's error: the mean of softmax minus label over `count` examples.

    The result has one number per class, known up to a common positive factor. If `reading` has the
    exact gradient of the last bias, this gradient is the result. Otherwise the error is estimated
    from the last weight's gradient, whose row c is class c's error times the layer's input.
    """
    classes = len(layer.guesses)
    rows = -reading.estimate[layer.weight].reshape(classes, -1)
    worth = reading.weight[layer.weight].reshape(classes, -1)
    inputs = np.broadcast_to(layer.inputs, rows.shape)
    if layer.bias is not None:
        bias, bias_worth = -reading.estimate[layer.bias], reading.weight[layer.bias]
        if bias_worth.all() and abs(bias.sum()) <= _EXACT * np.abs(bias).sum():
            return np.asarray(bias)
        rows, worth = np.c_[rows, bias], np.c_[worth, bias_worth]
        inputs = np.c_[inputs, np.ones(classes)]
    elif count == 1 and worth.all():
        left, sizes, _ = np.linalg.svd(rows, full_matrices=False)
        largest = left[np.argmax(np.abs(left[:, 0])), 0]
        # Only the label's class has a negative error, as large as all other errors together.
        return np.asarray(left[:, 0] * -np.sign(largest) * sizes[0])
    total, slope = np.sum(worth * inputs**2, axis=1), np.sum(worth * rows * inputs, axis=1)
    return np.asarray(np.divide(slope, total, out=np.zeros(classes), where=total > 0))


def recover(reading: Reading, layer: LastLayer, count: int, scale: float | None = None) -> Int64s:
    """Return the labels of a client with `count` examples, ascending.

    A class whose error (`error_of`) is negative is present. With a single example, exactly one
    class has a negative error, after any number of SGD steps. So its label is recovered with
    certainty from an exact report (Zhao et al. 2020). For several examples, a class's share of the
    examples is its expected softmax minus its error. Each present class gets one label. The
    remaining labels are assigned one by one, each to the class whose share exceeds its assigned
    labels most.

    If the client took one step, `scale` is its learning rate: a bias moves by `scale` times the
    class's error. Otherwise `scale` is None, and is estimated.
    """
    error = error_of(reading, layer, count)
    there = error < 0
    if scale is None:
        missing = 1 - layer.guesses[there].sum()
        scale = -error[there].sum() / missing if there.any() and missing > 0 else 1.0
    lacks = count * (layer.guesses - (error / scale if scale else 0.0))
    found = [int(c) for c in np.argsort(error, kind="stable")[:count] if there[c]]
    np.subtract.at(lacks, found, 1)
    while len(found) < count:
        found.append(int(np.argmax(lacks)))
        lacks[found[-1]] -= 1
    return np.sort(np.array(found, np.int64))

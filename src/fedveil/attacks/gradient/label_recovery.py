"""Which labels a client trained on, from what its training did to the last layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedveil._arrays import Float64s, Int64s
from fedveil.learning.weight_layout import Layout
from fedveil.protections.reading import Reading

#: Of an exact gradient the bias's entries add up to nothing; this far from it, it is not exact.
_EXACT = 1e-3


@dataclass(frozen=True)
class LastLayer:
    """Where a model's last dense layer lies in the vector: its weight, and its bias if any.

    `inputs` is the mean of what enters it, and `guesses` the mean of what a softmax makes of what
    leaves it, both over inputs that the attacker takes for typical.
    """

    weight: slice
    bias: slice | None
    inputs: Float64s
    guesses: Float64s

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module, probes: Tensor) -> LastLayer | None:
        """The last trainable dense layer; None where the logits are not what leaves it.

        `model` holds the weights that the client trains from.
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
    """The mean of softmax less label over the client's examples, a class each; up to a factor.

    The gradient of cross-entropy in the last bias is just that, and in row c of the last weight
    it is that of class c times what entered the layer. Where there is an exact bias it is taken
    alone. Otherwise one row each: by its regression on the layer's typical inputs, every entry
    counting as much as the reading says; or, for a single example, whose rows are all multiples
    of one, as their common factor.
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
        # The label's error is as large as all the others together, and the only negative one.
        return np.asarray(left[:, 0] * -np.sign(largest) * sizes[0])
    total, slope = np.sum(worth * inputs**2, axis=1), np.sum(worth * rows * inputs, axis=1)
    return np.asarray(np.divide(slope, total, out=np.zeros(classes), where=total > 0))


def recover(reading: Reading, layer: LastLayer, count: int, scale: float | None = None) -> Int64s:
    """The labels of a client with `count` examples, ascending.

    A class whose error is negative is there: for a single example exactly one is, under any
    number of steps of SGD, so that the label of an exact report is recovered for certain (Zhao et
    al. 2020). Of the others, a class's share of the examples is what a softmax was expected to
    give it, less its error; the shares are filled up one by one, always the one that lacks most.

    `scale`: the update of a bias in one step, for a mean error of one (the client's learning
    rate); None where it is not known, as after many steps: then the errors of the classes that
    are there are taken to make up what the softmax lacks of them.
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

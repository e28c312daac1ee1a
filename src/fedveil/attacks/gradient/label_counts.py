"""Counts of a client's labels, from its update of the model's last layer (iLRG)."""

from __future__ import annotations

import numpy as np

from fedveil.attacks.gradient.label_recovery import LastLayer, error_of
from fedveil.base.array_types import Float32s, Float64s, Int64s
from fedveil.base.lazy import special
from fedveil.protections.reading import Reading


def label_counts(
    reading: Reading, layer: LastLayer, weights: Float32s, count: int, scale: float
) -> Int64s:
    """Estimate the number of a client's `count` examples with each label. Returns counts by class.

    `reading` is the attacker's estimate of the client's update, `layer` the model's last layer, and
    `weights` the client's starting weights. All steps together move a class's bias by `scale` times
    its mean error. So `scale` is the number of steps times the learning rate, and larger under
    momentum.

    Source: Ma et al. 2023, "Instance-wise batch label restoration via gradients in federated
    learning" (iLRG). The mean error e_c of class c is the gradient of its bias in the last layer.
    The gradient of its weights, divided by e_c, is about the layer's mean input for examples of
    class c. P_c is the layer's softmax for this input, and e is the vector of all e_c. The counts n
    solve

        sum over c of n_c (P_c - one-hot(c)) = count * e,    sum over c of n_c = count,

    by least squares, with no count below 0. If e_c is not negative, class c may be absent, and P_c
    is `layer.guesses`, the mean softmax of typical examples.

    The equations are those of one step. Over many steps the softmax changes, so the counts are less
    exact.
    """
    from scipy.optimize import nnls  # a third of a second to import

    error = error_of(reading, layer, count)
    softmax = _softmax_of_classes(reading, layer, weights, error)
    system = np.vstack([softmax.T - np.eye(len(error)), np.full(len(error), len(error))])
    wanted = np.append(count * error / scale, len(error) * count)
    found, _ = nnls(system, wanted)
    return _whole(found, count)


def _softmax_of_classes(
    reading: Reading, layer: LastLayer, weights: Float32s, error: Float64s
) -> Float64s:
    """Estimate the mean softmax of the examples of each class, [classes, classes].

    Row c is the last layer's softmax for its mean input, estimated over the examples of class c.
    The estimate is the gradient of the class's weights divided by `error[c]`. `error` is the result
    of `error_of`. It has the same unknown factor as the gradient in `reading`, so the quotient is
    free of this factor. If `error[c]` is not negative, row c is `layer.guesses`. `weights` are the
    client's starting weights, as one vector.
    """
    classes = len(error)
    head = weights[layer.weight].reshape(classes, -1).astype(np.float64)
    bias = 0.0 if layer.bias is None else weights[layer.bias].astype(np.float64)
    rows = -reading.estimate[layer.weight].reshape(classes, -1)
    softmax = np.tile(layer.guesses, (classes, 1))
    for c in np.flatnonzero(error < 0):
        softmax[c] = special().softmax(head @ (rows[c] / error[c]) + bias)
    return softmax


def _whole(found: Float64s, count: int) -> Int64s:
    """Scale `found` to the sum `count`, and round it to integers with the same sum.

    The entries with the largest fractions are rounded up.
    """
    total = float(found.sum())
    exact = found * (count / total) if total else np.full(len(found), count / len(found))
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: count - int(counts.sum())]] += 1
    return counts

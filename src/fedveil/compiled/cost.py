"""Native losses: gradients with respect to the model's outputs, multiplied by `scale`.

Each loss has the arguments

    m        the float memory, with the outputs of a batch, and room for their gradients
    scores   a row of the operation table: outputs begin at its column Y, gradients at column DY
    y        the targets of all the client's examples
    rows     the indices of the batch's examples
    weights  the weight of each class, which only `weighted_cross_entropy` reads
    count    the number of examples in the batch
    scale    a factor of the gradient: 1 / count, times -learning rate for plain SGD
"""

from __future__ import annotations

import math

import numpy as np

from fedveil.base.array_types import Float32s, Int64s
from fedveil.base.example_arrays import IGNORED
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.exponential import exponentials
from fedveil.compiled.native import Native, native
from fedveil.compiled.row_passes import fill
from fedveil.learning.losses import WEIGHTED

#: The number of outputs for an example.
(SCORES,) = f.own(1)


@compiled()
def _softmax_less_one(m: Float32s, z: int, g: int, many: int, label: int, scale: float) -> None:
    """Write `scale` times the gradient of -log softmax(outputs)[label]: softmax minus one-hot.

    The `many` outputs begin at position `z` of the float memory `m`. The gradient is written to `m`
    from position `g` on. `scale` is first rounded to the memory's float type, as in torch. The
    softmax and the one-hot vector are then both multiplied by the rounded number. So their
    difference is exactly 0 where both are 1.
    """
    sum_of_all, first = exponentials(m, z, g, many, 1.0), m[g]
    m[g] = scale
    rounded, m[g] = m[g], first
    share = rounded / sum_of_all
    for k in range(g, g + many):
        m[k] *= share
    m[g + label] -= rounded


@native("FLLLFid")
def cross_entropy(
    m: Float32s, scores: Int64s, y: Int64s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Write `scale` times the gradient of -log softmax(outputs)[label] for each example of a batch.

    `scores` is a row of the operation table. It says where the batch's outputs are in the float
    memory `m`, and where in `m` the gradients are written. `rows` are the indices of the batch's
    `count` examples in the targets `y`. `weights` is not used.
    """
    for n in range(count):
        z, g, label = n * scores[f.YS] + scores[f.Y], n * scores[f.YS] + scores[f.DY], y[rows[n]]
        _softmax_less_one(m, z, g, scores[SCORES], label, scale)


@native("FLLLFid")
def weighted_cross_entropy(
    m: Float32s, scores: Int64s, y: Int64s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Write the gradient of -log softmax(outputs)[label] times the weight of the label's class.

    The gradient is multiplied by `scale`, and divided by the mean weight of the batch's labels.
    `scores` is a row of the operation table. It says where the batch's outputs are in the float
    memory `m`, and where in `m` the gradients are written. `rows` are the indices of the batch's
    `count` examples in the targets `y`. `weights` has the weight of each class.
    """
    total = 0.0
    for n in range(count):
        total += weights[y[rows[n]]]
    for n in range(count):
        z, g, label = n * scores[f.YS] + scores[f.Y], n * scores[f.YS] + scores[f.DY], y[rows[n]]
        share = weights[label] * count / total
        _softmax_less_one(m, z, g, scores[SCORES], label, scale * share)


@native("FLLLFid")
def next_token(
    m: Float32s, scores: Int64s, y: Int64s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Write `scale` times the gradient of each example's mean -log softmax(outputs)[next token].

    The mean is over the tokens with a target. The gradient of other tokens (target `IGNORED`) is 0.
    `scores` is a row of the operation table. It says where the batch's outputs are in the float
    memory `m`, and where in `m` the gradients are written. `rows` are the indices of the batch's
    `count` examples in the targets `y`. `weights` is not used.
    """
    tokens, many = scores[f.OC], scores[f.OW]
    for n in range(count):
        first, learnt = rows[n] * tokens, 0
        for t in range(first, first + tokens):
            learnt += y[t] != IGNORED
        for t in range(tokens):
            at = n * scores[f.YS] + t * many
            if y[first + t] != IGNORED:
                _softmax_less_one(
                    m, scores[f.Y] + at, scores[f.DY] + at, many, y[first + t], scale / learnt
                )
            else:
                fill(m, scores[f.DY] + at, many, np.float32(0))


@compiled()
def _of_numbers(
    m: Float32s, scores: Int64s, y: Float32s, rows: Int64s, count: int, scale: float, truth: bool
) -> None:
    """Write scale / n * (x - target) as the gradient of each of an example's n outputs.

    x is the output, or the sigmoid of the output if `truth` is True. `scores` is a row of the
    operation table. It says where the batch's outputs are in the float memory `m`, and where in `m`
    the gradients are written. `rows` are the indices of the batch's `count` examples in the targets
    `y`.
    """
    many = scores[SCORES]
    for n in range(count):
        z, g = scores[f.Y] + n * scores[f.YS], scores[f.DY] + n * scores[f.YS]
        for k in range(many):
            value = m[z + k]
            if truth:  # rounded in the memory's type as in torch, so that it can be exactly 1
                m[g + k] = math.exp(-value)
                m[g + k] += 1
                m[g + k] = 1 / m[g + k]
                value = m[g + k]
            m[g + k] = scale / many * (value - y[rows[n] * many + k])


@native("FLFLFid")
def mean_square(
    m: Float32s, scores: Int64s, y: Float32s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Write `scale` times the gradient of the mean of (output - target)² over an example's outputs.

    `scores` is a row of the operation table. It says where the batch's outputs are in the float
    memory `m`, and where in `m` the gradients are written. `rows` are the indices of the batch's
    `count` examples in the targets `y`. `weights` is not used.
    """
    _of_numbers(m, scores, y, rows, count, 2 * scale, False)


@native("FLFLFid")
def binary_cross_entropy(
    m: Float32s, scores: Int64s, y: Float32s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Write `scale` times the gradient of the mean binary cross-entropy over an example's outputs.

    `scores` is a row of the operation table. It says where the batch's outputs are in the float
    memory `m`, and where in `m` the gradients are written. `rows` are the indices of the batch's
    `count` examples in the targets `y`. `weights` is not used.
    """
    _of_numbers(m, scores, y, rows, count, scale, True)


#: A plan's loss -> the native function of its gradient.
COSTS: dict[str, Native] = {
    "cross_entropy": cross_entropy,
    WEIGHTED: weighted_cross_entropy,
    "next_token": next_token,
    "mean_square": mean_square,
    "binary_cross_entropy": binary_cross_entropy,
}

"""The loss of a batch, as `scale` times the gradient of its examples' summed losses.

Of each example's scores, of which there are H: the gradient lies after DY.
"""

from __future__ import annotations

import math

import numpy as np

from fedveil.base.arrays import Float32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.exponential import exponentials
from fedveil.compiled.native import Native, native
from fedveil.compiled.row_passes import fill
from fedveil.learning.losses import IGNORED, WEIGHTED


@compiled()
def _softmax_less_one(m: Float32s, z: int, g: int, many: int, label: int, scale: float) -> None:
    """The gradient of -log softmax(scores)[label], times `scale`: p, but p - 1 at the label."""
    share = scale / exponentials(m, z, g, many, 1.0)
    for k in range(g, g + many):
        m[k] *= share
    m[g + label] -= scale


@native("FLLLFid")
def cross_entropy(
    m: Float32s, scores: Int64s, y: Int64s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Of -log softmax(scores)[label], times the weight of that class."""
    for n in range(count):
        z, g, label = n * scores[f.YS] + scores[f.Y], n * scores[f.YS] + scores[f.DY], y[rows[n]]
        _softmax_less_one(m, z, g, scores[f.H], label, scale * weights[label])


@native("FLLLFid")
def next_token(
    m: Float32s, scores: Int64s, y: Int64s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Of the mean of -log softmax(scores)[token] over the tokens of which something is learnt."""
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
    """`truth`: the scores are logits of truth values."""
    many = scores[f.H]
    for n in range(count):
        z, g = scores[f.Y] + n * scores[f.YS], scores[f.DY] + n * scores[f.YS]
        for k in range(many):
            value = 1 / (1 + math.exp(-m[z + k])) if truth else m[z + k]
            m[g + k] = scale / many * (value - y[rows[n] * many + k])


@native("FLFLFid")
def mean_square(
    m: Float32s, scores: Int64s, y: Float32s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Of the mean of (output - number) ** 2."""
    _of_numbers(m, scores, y, rows, count, 2 * scale, False)


@native("FLFLFid")
def binary_cross_entropy(
    m: Float32s, scores: Int64s, y: Float32s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Of the mean cross-entropy of truth values, by their logits."""
    _of_numbers(m, scores, y, rows, count, scale, True)


#: What a plan may call its loss, and what of a client's targets it takes.
COSTS: dict[str, Native] = {
    "cross_entropy": cross_entropy,
    WEIGHTED: cross_entropy,
    "next_token": next_token,
    "mean_square": mean_square,
    "binary_cross_entropy": binary_cross_entropy,
}

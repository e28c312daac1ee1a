"""The loss of a batch, as `scale` times the gradient of its examples' summed losses.

Of each example's scores, of which there are H: the gradient lies after DY.
"""

from __future__ import annotations

import math

from fedveil._arrays import Float32s, Int64s
from fedveil._kernels import compiled
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.native import Native, native
from fedveil.learning.losses import WEIGHTED


@native("FLLLFid")
def cross_entropy(
    m: Float32s, scores: Int64s, y: Int64s, rows: Int64s, weights: Float32s, count: int,
    scale: float,
) -> None:  # fmt: skip
    """Of -log softmax(scores)[label], times the weight of that class."""
    for n in range(count):
        z, g = scores[f.Y] + n * scores[f.YS], scores[f.DY] + n * scores[f.YS]
        highest = m[z]
        for k in range(1, scores[f.H]):
            # A score that is no number makes all of them so.
            if m[z + k] > highest or m[z + k] != m[z + k]:
                highest = m[z + k]
        total = 0.0
        for k in range(scores[f.H]):
            m[g + k] = math.exp(m[z + k] - highest)
            total += m[g + k]
        label = y[rows[n]]
        share = scale * weights[label]
        for k in range(scores[f.H]):
            p = m[g + k] / total
            m[g + k] = share * (p - 1 if k == label else p)


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


#: What a plan may call its loss; the first two take a class, the others a number for each score.
COSTS: dict[str, Native] = {
    "cross_entropy": cross_entropy,
    WEIGHTED: cross_entropy,
    "mean_square": mean_square,
    "binary_cross_entropy": binary_cross_entropy,
}

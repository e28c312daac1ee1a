"""The loss of a batch, as the gradient of its scores."""

from __future__ import annotations

import math

from fedveil._arrays import Float32s, Int64s
from fedveil._kernels import compiled
from fedveil.learning.compiled import fields as f


@compiled()
def cross_entropy(
    m: Float32s, scores: Int64s, count: int, y: Int64s, rows: Int64s, scale: float
) -> None:
    """`scale` times the gradient of the sum of -log softmax(scores)[label]; H is their number."""
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
        for k in range(scores[f.H]):
            p = m[g + k] / total
            m[g + k] = scale * (p - 1 if k == y[rows[n]] else p)

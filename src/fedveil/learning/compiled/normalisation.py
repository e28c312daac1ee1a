"""GroupNorm and LayerNorm, in place: (x - mean) / sqrt(variance + eps), times a weight, and a bias.

LayerNorm of a whole example is one group, whose weight and bias have an entry for each value.
"""

from __future__ import annotations

import numpy as np

from fedveil._arrays import Float32s, Int32s, Int64s
from fedveil._kernels import compiled
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.dense_layer import add_rows, fill
from fedveil.learning.compiled.native import OPERATION, native


@compiled()
def _at(op: Int64s, first: int, n: int, c: int, i: int, j: int) -> int:
    return first + n * op[f.XS] + i * op[f.XR] + j * op[f.XC] + c * op[f.XF]  # type: ignore[no-any-return]


@native(OPERATION)
def normalise(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """The normalised values are kept, and what each group was divided by."""
    channels, size = op[f.C] // op[f.GROUPS], op[f.C] * op[f.H] * op[f.W] // op[f.GROUPS]
    for n in range(count):
        for group in range(op[f.GROUPS]):
            total, squares = 0.0, 0.0
            for c in range(group * channels, (group + 1) * channels):
                for i in range(op[f.H]):
                    for j in range(op[f.W]):
                        total += m[_at(op, op[f.X], n, c, i, j)]
            mean = total / size
            for c in range(group * channels, (group + 1) * channels):
                for i in range(op[f.H]):
                    for j in range(op[f.W]):
                        squares += (m[_at(op, op[f.X], n, c, i, j)] - mean) ** 2
            factor = 1.0 / np.sqrt(squares / size + setting)
            m[op[f.VALUES] + n * op[f.GROUPS] + group] = factor
            for c in range(group * channels, (group + 1) * channels):
                for i in range(op[f.H]):
                    for j in range(op[f.W]):
                        at = _at(op, op[f.X], n, c, i, j)
                        value = (m[at] - mean) * factor
                        m[at - op[f.X] + op[f.PARTS]] = value
                        if op[f.BIASED]:
                            which = c * op[f.AF] + i * op[f.AR] + j * op[f.AC]
                            value = value * m[op[f.WEIGHT] + which] + m[op[f.BIAS] + which]
                        m[at] = value


@native(OPERATION)
def normalise_back(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """With g the gradient times the weight and x the normalised values, a group's is

    factor * (g - mean of g - x * mean of g x).
    """
    channels, size = op[f.C] // op[f.GROUPS], op[f.C] * op[f.H] * op[f.W] // op[f.GROUPS]
    kept, change, entries = op[f.PARTS] - op[f.DX], op[f.TURNED], op[f.ROW]
    fill(m, change, 2 * entries, np.float32(0))
    for n in range(count):
        for group in range(op[f.GROUPS]):
            total, met = 0.0, 0.0
            for c in range(group * channels, (group + 1) * channels):
                for i in range(op[f.H]):
                    for j in range(op[f.W]):
                        at = _at(op, op[f.DX], n, c, i, j)
                        if op[f.BIASED]:
                            which = c * op[f.AF] + i * op[f.AR] + j * op[f.AC]
                            m[change + which] += m[at] * m[at + kept]
                            m[change + entries + which] += m[at]
                            m[at] *= m[op[f.WEIGHT] + which]
                        total += m[at]
                        met += m[at] * m[at + kept]
            factor = m[op[f.VALUES] + n * op[f.GROUPS] + group]
            for c in range(group * channels, (group + 1) * channels):
                for i in range(op[f.H]):
                    for j in range(op[f.W]):
                        at = _at(op, op[f.DX], n, c, i, j)
                        m[at] = factor * (m[at] - total / size - m[at + kept] * met / size)
    if op[f.BIASED]:
        add_rows(m, op[f.WEIGHT] + to, change, 0, 1, entries)
        add_rows(m, op[f.BIAS] + to, change + entries, 0, 1, entries)

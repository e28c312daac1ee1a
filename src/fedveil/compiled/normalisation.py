"""GroupNorm and LayerNorm, in place:

(x - mean) / sqrt(variance + eps), times a weight, plus a bias.

LayerNorm over a whole example is GroupNorm with one group and a weight and bias for each value.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.native import OPERATION, native
from fedveil.compiled.operation import IMAGE, ROW, TOKENS, Memory, Operation, Row, Value, need
from fedveil.compiled.row_passes import add_rows, fill, inner_product, total


@compiled()
def _listed(w: Int32s, op: Int64s, channels: int) -> tuple[int, int]:
    """Return where two lists begin in `w`: offsets of a group's values, and of their weights."""
    places = op[f.PLACES]
    weights = places + channels * op[f.H] * op[f.W]
    t = 0
    for c in range(channels):
        for i in range(op[f.H]):
            for j in range(op[f.W]):
                w[places + t] = c * op[f.XF] + i * op[f.XR] + j * op[f.XC]
                w[weights + t] = c * op[f.AF] + i * op[f.AR] + j * op[f.AC]
                t += 1
    return places, weights


@native(OPERATION)
def norm_groups(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Normalise each group of each example.

    Saves the normalised values and each group's factor, 1 / sqrt(variance + eps), for the backward
    pass.
    """
    channels, size = op[f.C] // op[f.GROUPS], op[f.C] * op[f.H] * op[f.W] // op[f.GROUPS]
    places, weights = _listed(w, op, channels)
    for n in range(op[f.COUNT]):
        for group in range(op[f.GROUPS]):
            x, total, squares = op[f.X] + n * op[f.XS] + group * channels * op[f.XF], 0.0, 0.0
            for t in range(size):
                total += m[x + w[places + t]]
            mean = total / size
            for t in range(size):
                squares += (m[x + w[places + t]] - mean) ** 2
            factor = 1.0 / np.sqrt(squares / size + setting)
            m[op[f.VALUES] + n * op[f.GROUPS] + group] = factor
            for t in range(size):
                at = x + w[places + t]
                value = (m[at] - mean) * factor
                m[at - op[f.X] + op[f.PARTS]] = value
                if op[f.BIASED]:
                    which = group * channels * op[f.AF] + w[weights + t]
                    value = value * m[op[f.WEIGHT] + which] + m[op[f.BIAS] + which]
                m[at] = value


@native(OPERATION)
def norm_groups_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Compute the gradients of the input x, the weight and the bias.

    With g the output gradient times the weight, and n the normalised values:

        dx = factor * (g - mean of g - n * mean of g n).
    """
    channels, size = op[f.C] // op[f.GROUPS], op[f.C] * op[f.H] * op[f.W] // op[f.GROUPS]
    places, weights = _listed(w, op, channels)
    kept, change, entries = op[f.PARTS] - op[f.DX], op[f.TURNED], op[f.ROW]
    fill(m, change, 2 * entries, np.float32(0))
    for n in range(op[f.COUNT]):
        for group in range(op[f.GROUPS]):
            g, total, met = op[f.DX] + n * op[f.XS] + group * channels * op[f.XF], 0.0, 0.0
            for t in range(size):
                at = g + w[places + t]
                if op[f.BIASED]:
                    which = group * channels * op[f.AF] + w[weights + t]
                    m[change + which] += m[at] * m[at + kept]
                    m[change + entries + which] += m[at]
                    m[at] *= m[op[f.WEIGHT] + which]
                total += m[at]
                met += m[at] * m[at + kept]
            factor = m[op[f.VALUES] + n * op[f.GROUPS] + group]
            for t in range(size):
                at = g + w[places + t]
                m[at] = factor * (m[at] - total / size - m[at + kept] * met / size)
    if op[f.BIASED]:
        add_rows(m, op[f.DWEIGHT], change, 0, 1, entries)
        add_rows(m, op[f.DBIAS], change + entries, 0, 1, entries)


@compiled(reorder=True)
def _squares(m: Float32s, begin: int, count: int, mean: float) -> float:
    """Return the sum of (entry - mean) ** 2 over `count` entries."""
    found = np.float32(0)
    for i in range(begin, begin + count):
        found += (m[i] - mean) ** 2
    return found  # type: ignore[return-value]


@native(OPERATION)
def norm_rows(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Normalise each token's row, which is contiguous.

    Saves the values that `norm_groups` saves.
    """
    width, kept = op[f.W], op[f.PARTS] - op[f.X]
    for t in range(op[f.COUNT] * op[f.C]):
        x = op[f.X] + t // op[f.C] * op[f.XS] + t % op[f.C] * width
        at = op[f.VALUES] + t
        m[at] = total(m, x, width) / width
        mean = m[at]
        m[at] = 1.0 / np.sqrt(_squares(m, x, width, mean) / width + setting)
        factor = m[at]
        for i in range(x, x + width):
            m[i + kept] = (m[i] - mean) * factor
        for i in range(width):
            value = m[x + kept + i]
            if op[f.BIASED]:
                value = value * m[op[f.WEIGHT] + i] + m[op[f.BIAS] + i]
            m[x + i] = value


@native(OPERATION)
def norm_rows_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Compute the gradients for each token's row.

    The gradient of the weight is summed separately and added at the end. Under SGD without momentum
    or decay it is added to the weight itself, which the remaining rows still need unchanged.
    """
    width, kept, change = op[f.W], op[f.PARTS] - op[f.DX], op[f.TURNED]
    ends = change + 2 * width  # stores two numbers, to round them like all the others
    fill(m, change, 2 * op[f.ROW], np.float32(0))
    for t in range(op[f.COUNT] * op[f.C]):
        g = op[f.DX] + t // op[f.C] * op[f.XS] + t % op[f.C] * width
        if op[f.BIASED]:
            for i in range(width):
                m[change + i] += m[g + i] * m[g + kept + i]
            for i in range(width):
                m[change + width + i] += m[g + i]
            for i in range(width):
                m[g + i] *= m[op[f.WEIGHT] + i]
        m[ends] = total(m, g, width) / width
        m[ends + 1] = inner_product(m, g, g + kept, width) / width
        mean, met, factor = m[ends], m[ends + 1], m[op[f.VALUES] + t]
        for i in range(g, g + width):
            m[i] = factor * (m[i] - mean - m[i + kept] * met)
    if op[f.BIASED]:
        add_rows(m, op[f.DWEIGHT], change, 0, 1, width)
        add_rows(m, op[f.DBIAS], change + width, 0, 1, width)


class NormOfGroups(Operation):
    layer: nn.GroupNorm | nn.LayerNorm
    forward, backward = norm_groups, norm_groups_back

    def written(self) -> Value:
        self.setting = self.layer.eps
        need((self.layer.weight is None) == (self.layer.bias is None))
        if isinstance(self.layer, nn.GroupNorm):
            need(self.x.form == IMAGE and self.layer.num_channels == self.x.shape[0])
        else:
            last = self.x.shape if self.x.form == IMAGE else self.x.shape[2:]
            need(tuple(self.layer.normalized_shape) == last)
            need(self.x.form != ROW or self.x.shape[:2] == (1, 1))
        return self.x

    def numbers(self, memory: Memory, batch: int, changed: bool) -> Row:
        (c, h, w), groups = self.x.shape, getattr(self.layer, "num_groups", 0)
        size, index = (c, (0, 0, 1)) if groups else (c * h * w, (w, 1, h * w))
        size = size if self.biased else 0
        return {
            f.GROUPS: groups or 1, f.AR: index[0], f.AC: index[1], f.AF: index[2], f.ROW: size,
            f.PARTS: memory.floats(batch * self.x.size) + self.x.inside,
            f.VALUES: memory.floats(batch * (groups or 1)), f.TURNED: memory.floats(2 * size),
            f.PLACES: memory.ints(2 * c * h * w),
        }  # fmt: skip


class NormOfRows(NormOfGroups):
    """LayerNorm over each token's row."""

    forward, backward = norm_rows, norm_rows_back

    def numbers(self, memory: Memory, batch: int, changed: bool) -> Row:
        tokens, _, width = self.x.shape
        return {
            f.ROW: width if self.biased else 0, f.PARTS: memory.floats(batch * self.x.size),
            f.VALUES: memory.floats(batch * tokens), f.TURNED: memory.floats(2 * width + 2),
        }  # fmt: skip


def layer_norm(layer: nn.LayerNorm, x: Value) -> Operation:
    return (NormOfRows if x.form == TOKENS else NormOfGroups)(layer, x)

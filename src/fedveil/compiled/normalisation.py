"""GroupNorm and LayerNorm, in place:

(x - mean) / sqrt(variance + eps), times a weight, plus a bias.

LayerNorm over a whole example is GroupNorm with one group and a weight and bias for each value.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np
from torch import nn

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.native import OPERATION, native
from fedveil.compiled.operation import IMAGE, ROW, TOKENS, Memory, Operation, Row, Value, need
from fedveil.compiled.row_passes import add_rows, fill, inner_product, total

#: The number of groups, the strides of the weight and its number of entries.
(GROUPS, AR, AC, AF, ENTRIES) = f.own(5)
#: Memory for the normalised values and the groups' factors. Scratch memory for the gradients of the
#: weight and the bias, and for offsets.
(NORMED, FACTORS, CHANGE, PLACES) = f.own(4, ENTRIES + 1)


@compiled()
def _listed(w: Int32s, op: Int64s, channels: int) -> tuple[int, int]:
    places = op[PLACES]
    weights = places + channels * op[f.H] * op[f.W]
    t = 0
    for c in range(channels):
        for i in range(op[f.H]):
            for j in range(op[f.W]):
                w[places + t] = c * op[f.XF] + i * op[f.XR] + j * op[f.XC]
                w[weights + t] = c * op[AF] + i * op[AR] + j * op[AC]
                t += 1
    return places, weights


@native(OPERATION)
def norm_groups(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Normalise each group of channels of each example in place, as nn.GroupNorm does.

    `setting` is the eps of the layer. Saves the normalised values and 1 / sqrt(variance + eps) for
    the backward pass. `op`, the layer's row of the operation table, says where the values are in
    the float memory `m`. `w` is the integer memory. `draws` is not used.
    """
    channels, size = op[f.C] // op[GROUPS], op[f.C] * op[f.H] * op[f.W] // op[GROUPS]
    places, weights = _listed(w, op, channels)
    for n in range(op[f.COUNT]):
        for group in range(op[GROUPS]):
            x, total, squares = op[f.X] + n * op[f.XS] + group * channels * op[f.XF], 0.0, 0.0
            for t in range(size):
                total += m[x + w[places + t]]
            mean = total / size
            for t in range(size):
                squares += (m[x + w[places + t]] - mean) ** 2
            factor = 1.0 / np.sqrt(squares / size + setting)
            m[op[FACTORS] + n * op[GROUPS] + group] = factor
            for t in range(size):
                at = x + w[places + t]
                value = (m[at] - mean) * factor
                m[at - op[f.X] + op[NORMED]] = value
                if op[f.BIASED]:
                    which = group * channels * op[AF] + w[weights + t]
                    value = value * m[op[f.WEIGHT] + which] + m[op[f.BIAS] + which]
                m[at] = value


@native(OPERATION)
def norm_groups_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Compute the gradients of the input, the weight and the bias of `norm_groups`.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w` is the integer memory. `setting` and `draws` are not used.
    """
    channels, size = op[f.C] // op[GROUPS], op[f.C] * op[f.H] * op[f.W] // op[GROUPS]
    places, weights = _listed(w, op, channels)
    kept, change, entries = op[NORMED] - op[f.DX], op[CHANGE], op[ENTRIES]
    fill(m, change, 2 * entries, np.float32(0))
    for n in range(op[f.COUNT]):
        for group in range(op[GROUPS]):
            g, total, met = op[f.DX] + n * op[f.XS] + group * channels * op[f.XF], 0.0, 0.0
            for t in range(size):
                at = g + w[places + t]
                if op[f.BIASED]:
                    which = group * channels * op[AF] + w[weights + t]
                    m[change + which] += m[at] * m[at + kept]
                    m[change + entries + which] += m[at]
                    m[at] *= m[op[f.WEIGHT] + which]
                total += m[at]
                met += m[at] * m[at + kept]
            factor = m[op[FACTORS] + n * op[GROUPS] + group]
            for t in range(size):
                at = g + w[places + t]
                m[at] = factor * (m[at] - total / size - m[at + kept] * met / size)
    if op[f.BIASED]:
        add_rows(m, op[f.DWEIGHT], change, 0, 1, entries)
        add_rows(m, op[f.DBIAS], change + entries, 0, 1, entries)


@compiled(reorder=True)
def _squares(m: Float32s, begin: int, count: int, mean: float) -> float:
    found = np.float32(0)
    for i in range(begin, begin + count):
        found += (m[i] - mean) ** 2
    return found  # type: ignore[return-value]


@native(OPERATION)
def norm_rows(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Normalise each token's values in place, as nn.LayerNorm does.

    `setting` is the eps of the layer. Saves the normalised values and 1 / sqrt(variance + eps) for
    the backward pass. `op`, the layer's row of the operation table, says where the values are in
    the float memory `m`. `w` and `draws` are not used.
    """
    width, kept = op[f.W], op[NORMED] - op[f.X]
    for t in range(op[f.COUNT] * op[f.C]):
        x = op[f.X] + t // op[f.C] * op[f.XS] + t % op[f.C] * width
        at = op[FACTORS] + t
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
    """Compute the gradients of the input, the weight and the bias of `norm_rows`.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    width, kept, change = op[f.W], op[NORMED] - op[f.DX], op[CHANGE]
    ends = change + 2 * width  # stores two numbers, to round them like all the others
    fill(m, change, 2 * op[ENTRIES], np.float32(0))
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
        mean, met, factor = m[ends], m[ends + 1], m[op[FACTORS] + t]
        for i in range(g, g + width):
            m[i] = factor * (m[i] - mean - m[i + kept] * met)
    if op[f.BIASED]:
        add_rows(m, op[f.DWEIGHT], change, 0, 1, width)
        add_rows(m, op[f.DBIAS], change + width, 0, 1, width)


class NormOfGroups(Operation):
    layer: nn.GroupNorm | nn.LayerNorm
    layers: ClassVar[tuple[type[nn.Module], ...]] = (nn.GroupNorm,)
    forward, backward = norm_groups, norm_groups_back

    def written(self) -> Value:
        self.setting = self.layer.eps
        whole = (self.layer.weight is None) == (self.layer.bias is None)
        need(whole, "a normalisation has a weight and no bias")
        if isinstance(self.layer, nn.GroupNorm):
            fits = self.x.form == IMAGE and self.layer.num_channels == self.x.shape[0]
            need(fits, "the input of nn.GroupNorm has another shape")
            several = prod(self.x.shape) > self.layer.num_groups  # for one value torch may raise
            need(several, "a group of nn.GroupNorm has a single value")
        else:
            last = self.x.shape if self.x.form == IMAGE else self.x.shape[2:]
            fits = tuple(self.layer.normalized_shape) == last
            fits = fits and (self.x.form != ROW or self.x.shape[:2] == (1, 1))
            need(fits, "nn.LayerNorm normalises other values than a whole example or token")
        return self.x

    def working_memory(self, memory: Memory, batch: int, changed: bool) -> Row:
        (c, h, w), groups = self.x.shape, getattr(self.layer, "num_groups", 0)
        size, index = (c, (0, 0, 1)) if groups else (c * h * w, (w, 1, h * w))
        size = size if self.biased else 0
        return {
            GROUPS: groups or 1, AR: index[0], AC: index[1], AF: index[2], ENTRIES: size,
            NORMED: memory.floats(batch * self.x.size) + self.x.inside,
            FACTORS: memory.floats(batch * (groups or 1)), CHANGE: memory.floats(2 * size),
            PLACES: memory.ints(2 * c * h * w),
        }  # fmt: skip


class NormOfRows(NormOfGroups):
    layers = ()
    forward, backward = norm_rows, norm_rows_back

    def working_memory(self, memory: Memory, batch: int, changed: bool) -> Row:
        tokens, _, width = self.x.shape
        return {
            ENTRIES: width if self.biased else 0, NORMED: memory.floats(batch * self.x.size),
            FACTORS: memory.floats(batch * tokens), CHANGE: memory.floats(2 * width + 2),
        }  # fmt: skip


def layer_norm(layer: nn.LayerNorm, x: Value) -> Operation:
    return (NormOfRows if x.form == TOKENS else NormOfGroups)(layer, x)

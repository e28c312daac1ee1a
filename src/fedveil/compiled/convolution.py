"""A convolution, alone or merged with the following max-pooling, forward and backward.

Values are stored channels last. With a pooling, the backward pass visits only the outputs that were
the maximum of a pool (the winners).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import nn

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.native import OPERATION, call, native
from fedveil.compiled.operation import (
    IMAGE,
    Laid,
    Memory,
    NotServedError,
    Operation,
    Row,
    Value,
    need,
    up,
)
from fedveil.compiled.row_passes import add_rows, fill, total
from fedveil.compiled.tiles import list_winners
from fedveil.compiled.window import (
    AFTER_POOL,
    BEST,
    HIGH,
    PLACES,
    WIDE,
    pair,
    pool,
    pool_numbers,
    pooled,
    windows,
)

#: The size, stride and padding of a window, and a flag for a pooling after the convolution. The
#: output before the pooling has the size (HIGH, WIDE).
(KH, KW, SH, SW, PH, PW, POOLED) = f.own(7, AFTER_POOL)
#: Scratch memory: the filters with their outputs last, and the convolution's own output.
(TURNED, OUTPUT) = f.own(2, POOLED + 1)
#: Scratch memory of the backward pass without pooling: the gradients of a row's windows, of the
#: filters and of the biases.
(PART, CHANGE, BIASES) = f.own(3, OUTPUT + 1)
#: Scratch memory of the backward pass with pooling: the places of winners, and their values.
(LISTS, VALUES) = f.own(2, BIASES + 1)


@native(OPERATION)
def convolve(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Compute a convolution, and the max-pooling merged into it if any, for a batch of examples.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w` is the integer memory. `setting` and `draws` are not used.
    """
    filters, row, length = op[f.OC], op[f.ROW], op[KW] * op[f.C]
    lanes, turned, z = (filters + 7) // 8 * 8, op[TURNED], op[OUTPUT]
    for k in range(filters):
        for r in range(op[KH]):
            for t in range(length):
                place = op[f.WEIGHT] + (k * op[KH] + r) * row + t
                m[turned + (r * length + t) * lanes + k] = m[place]
    for n in range(op[f.COUNT]):
        origin = op[f.X] + n * op[f.XS] - op[PH] * op[f.XR] - op[PW] * op[f.XC]
        for i in range(op[HIGH]):
            out = z + i * op[WIDE] * lanes
            call(
                op[f.PRODUCT], m, out, lanes, m, op[f.BIAS], 0, m,
                origin + i * op[SH] * op[f.XR], op[SW] * op[f.XC], 1, op[f.XR],
                m, turned, lanes, length * lanes, op[WIDE], lanes, length, op[KH],
            )  # fmt: skip
        if op[POOLED]:
            steps = op[SH] * op[f.XR], op[SW] * op[f.XC]
            pool(m, w, op, n, z, op[WIDE] * lanes, lanes, n * op[f.XS], steps)
        else:
            for i in range(op[f.OH]):
                for j in range(op[f.OW]):
                    at = op[f.Y] + n * op[f.YS] + i * op[f.YR] + j * op[f.YC]
                    for k in range(filters):
                        m[at + k * op[f.YF]] = m[z + (i * op[f.OW] + j) * lanes + k]


@native(OPERATION)
def convolve_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Compute the gradients of a convolution, and of its max-pooling if any, for a batch.

    The gradient of the input is overwritten. The gradients of the filters and of the bias are added
    to the values that are already there. `op`, the layer's row of the operation table, says where
    the values are in the float memory `m`. `w` is the integer memory. `setting` and `draws` are not
    used.
    """
    if op[f.DX] >= 0:
        border = op[PH] * op[f.XR] + op[PW] * op[f.XC]
        fill(m, op[f.DX] - border, op[f.COUNT] * op[f.XS], np.float32(0))
    if op[POOLED]:
        _meet_all_winners(m, w, op)
    else:
        _meet_all(m, op)
    for r in range(op[f.OC] * op[KH]):
        place, length = op[f.DWEIGHT] + r * op[f.ROW], op[KW] * op[f.C]
        fill(m, place + length, op[f.ROW] - length, np.float32(0))


#: Interleave this many examples: overlapping windows of one example would wait for each other's
#: sums.
_TURNS = 16


@compiled()
def _meet_all_winners(m: Float32s, w: Int32s, op: Int64s) -> None:
    filters, row, rows, windows = op[f.OC], op[f.ROW], op[KH], op[f.OH] * op[f.OW]
    lanes = (filters + 7) // 8 * 8
    border = op[PH] * op[f.XR] + op[PW] * op[f.XC]
    for k in range(filters):
        places, values, found = op[LISTS], op[VALUES], 0
        for n in range(0, op[f.COUNT], _TURNS):
            found = list_winners(
                m, op[f.DY] + n * op[f.YS] + k * op[f.YF], op[f.YR], op[f.YC], op[f.YS],
                w, op[PLACES] + n * windows * lanes + k, op[f.OW] * lanes, lanes,
                windows * lanes, op[f.OH], op[f.OW], min(_TURNS, op[f.COUNT] - n),
                w, places, m, values, found,
            )  # fmt: skip
        filter = k * rows * row
        if op[f.DX] >= 0:
            call(
                op[f.MEET_WINNERS],
                m, op[f.DX] - border, op[f.XR], m, op[f.WEIGHT] + filter, row, rows, row,
                w, places, m, values, found, 1,
            )  # fmt: skip
        call(
            op[f.MEET_WINNERS],
            m, op[f.X] - border, op[f.XR], m, op[f.DWEIGHT] + filter, row, rows, row,
            w, places, m, values, found, 0,
        )  # fmt: skip
        if op[f.BIASED]:
            m[op[f.DBIAS] + k] += total(m, values, found)


@compiled()
def _meet_all(m: Float32s, op: Int64s) -> None:
    filters, row, rows, z, part = op[f.OC], op[f.ROW], op[KH], op[OUTPUT], op[PART]
    lanes, change = (filters + 7) // 8 * 8, op[CHANGE]
    biases = op[BIASES]  # a separate sum is more accurate: it adds many small numbers
    fill(m, change, filters * rows * row, np.float32(0))
    fill(m, biases, filters, np.float32(0))
    for n in range(op[f.COUNT]):
        for i in range(op[f.OH]):
            for j in range(op[f.OW]):
                at = op[f.DY] + n * op[f.YS] + i * op[f.YR] + j * op[f.YC]
                for k in range(filters):
                    m[z + (i * op[f.OW] + j) * lanes + k] = m[at + k * op[f.YF]]
        add_rows(m, biases, z, lanes, op[f.OH] * op[f.OW], filters)
        border = n * op[f.XS] - op[PH] * op[f.XR] - op[PW] * op[f.XC]
        for r in range(rows):
            call(
                op[f.PRODUCT], m, change + r * row, rows * row,
                m, change + r * row, rows * row, m, z, 1, lanes, op[f.OW] * lanes,
                m, op[f.X] + border + r * op[f.XR], op[SW] * op[f.XC], op[SH] * op[f.XR],
                filters, row, op[f.OW], op[f.OH],
            )  # fmt: skip
        if op[f.DX] >= 0:
            for i in range(op[f.OH]):
                call(
                    op[f.PRODUCT], m, part, rows * row, m, 0, -1,
                    m, z + i * op[f.OW] * lanes, lanes, 1, 0,
                    m, op[f.WEIGHT], rows * row, 0, op[f.OW], rows * row, filters, 1,
                )  # fmt: skip
                for j in range(op[f.OW]):
                    for r in range(rows):
                        at = op[f.DX] + border + (i * op[SH] + r) * op[f.XR]
                        at += j * op[SW] * op[f.XC]
                        add_rows(m, at, part + (j * rows + r) * row, 0, 1, op[KW] * op[f.C])
    add_rows(m, op[f.DWEIGHT], change, 0, 1, filters * rows * row)
    if op[f.BIASED]:
        add_rows(m, op[f.DBIAS], biases, 0, 1, filters)


class Pooled(nn.Module):
    """A convolution and the max-pooling that is merged into it, as one layer."""

    def __init__(self, convolution: nn.Conv2d, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.convolution, self.pool = convolution, pool


class Convolution(Operation):
    layer: nn.Conv2d
    layers: ClassVar[tuple[type[nn.Module], ...]] = (nn.Conv2d,)
    forward, backward = convolve, convolve_back
    products = (f.PRODUCT, f.MEET_WINNERS)

    def written(self) -> Value:
        x, conv = self.x, self.layer
        fits = x.form == IMAGE and conv.in_channels == x.shape[0]
        need(fits, "the input of nn.Conv2d has another shape")
        need(conv.groups == 1, "nn.Conv2d has groups")
        need(conv.dilation == (1, 1), "nn.Conv2d has a dilation")
        need(conv.padding_mode == "zeros", "nn.Conv2d pads with other values than zeros")
        if isinstance(conv.padding, str):
            raise NotServedError("the padding of nn.Conv2d is not given as numbers")
        x.apart, x.border = False, pair(conv.padding)
        kernel, stride = pair(conv.kernel_size), pair(conv.stride)
        #: The shape of the convolution's own output, before pooling.
        self._own = (conv.out_channels, *windows(x.shape, kernel, stride, x.border))
        return Value(self._own, IMAGE)

    @property
    def row(self) -> int:
        return up(self.layer.kernel_size[1] * self.layer.in_channels)

    def laid(self, weight: nn.Parameter) -> Laid:
        (o, c, r, s), row = weight.shape, self.row
        return weight, o * r * row, (o, r, s, c, c * r * s, s, 1, r * s, r * row, row, c, 1)

    def working_memory(self, memory: Memory, batch: int, changed: bool) -> Row:
        (kh, kw), (sh, sw) = pair(self.layer.kernel_size), pair(self.layer.stride)
        (filters, zh, zw), (ph, pw) = self._own, self.x.border
        lanes = up(filters)
        return {
            KH: kh, KW: kw, SH: sh, SW: sw, PH: ph, PW: pw, HIGH: zh, WIDE: zw,
            TURNED: memory.floats(kh * kw * self.layer.in_channels * lanes),
            OUTPUT: memory.floats(zh * zw * lanes),
        } | self._of_backward_pass(memory, batch)  # fmt: skip

    def _of_backward_pass(self, memory: Memory, batch: int) -> Row:
        rows = self.layer.kernel_size[0] * self.row
        return {
            PART: memory.floats(self._own[2] * rows),
            CHANGE: memory.floats(self._own[0] * rows),
            BIASES: memory.floats(self._own[0]),
        }


class PooledConvolution(Convolution):
    layers = (Pooled,)

    def __init__(self, layer: Pooled, x: Value) -> None:
        self._pool = layer.pool
        super().__init__(layer.convolution, x)

    def written(self) -> Value:
        super().written()
        return Value(pooled(self._own, self._pool), IMAGE)

    def _of_backward_pass(self, memory: Memory, batch: int) -> Row:
        lanes, most = up(self._own[0]), batch * self.y.shape[1] * self.y.shape[2]
        return pool_numbers(self._pool) | {
            POOLED: 1, BEST: memory.floats(lanes), PLACES: memory.ints(most * lanes),
            LISTS: memory.ints(most), VALUES: memory.floats(most),
        }  # fmt: skip

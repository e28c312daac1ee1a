"""Max-pooling and average-pooling, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import nn

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.native import OPERATION, native
from fedveil.compiled.operation import IMAGE, Memory, Operation, Row, Shape, Value, need, up
from fedveil.compiled.row_passes import fill
from fedveil.compiled.tiles import largest_tile

#: The size, stride and padding of the windows, and the size of the image under them. Scratch memory
#: for the largest values of one window, and the places of all windows' largest values.
(KH, KW, SH, SW, PH, PW, HIGH, WIDE, BEST, PLACES) = f.own(10)
#: The first column of an operation that pools its own result.
AFTER_POOL = PLACES + 1

_largest_8 = largest_tile(8)


@compiled()
def pool(
    m: Float32s, w: Int32s, op: Int64s, n: int, z: int, zr: int, zc: int,
    first: int, steps: tuple[int, int],
) -> None:  # fmt: skip
    """Write the largest value of each window of example `n` to the output, and save its position.

    The values of the example begin at position `z` of the float memory `m`, with strides `zr` and
    `zc` for rows and columns. The position of a value in row r and column s of the image is saved
    in the integer memory `w`, as the number first + r * steps[0] + s * steps[1]. `op` is the
    layer's row of the operation table.
    """
    lanes, best = (op[f.OC] + 7) // 8 * 8, op[BEST]
    # Read these once: the compiler must assume that any write may change them.
    channels, rows, columns, high, wide = op[f.OC], op[f.OH], op[f.OW], op[HIGH], op[WIDE]
    down, across, height, width = op[SH], op[SW], op[KH], op[KW]
    y, yr, yc, yf = op[f.Y] + n * op[f.YS], op[f.YR], op[f.YC], op[f.YF]
    won, border, left_border = op[PLACES] + n * rows * columns * lanes, op[PH], op[PW]
    for i in range(rows):
        top = i * down - border
        bottom, top = min(top + height, high), max(top, 0)
        for j in range(columns):
            left = j * across - left_border
            right, left = min(left + width, wide), max(left, 0)
            begin, place = z + top * zr + left * zc, first + top * steps[0] + left * steps[1]
            for k in range(0, lanes, 8):
                _largest_8(
                    m, begin + k, zr, zc, bottom - top, right - left, place, steps[0], steps[1],
                    best + k, w, won + k,
                )  # fmt: skip
            won += lanes
            at = y + i * yr + j * yc
            for k in range(channels):
                m[at + k * yf] = m[best + k]


@native(OPERATION)
def largest(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Apply max-pooling to every example of a batch.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w` is the integer memory. `setting` and `draws` are not used.
    """
    for n in range(op[f.COUNT]):
        at = n * op[f.XS]
        pool(m, w, op, n, op[f.X] + at, op[f.XR], op[f.XC], at, (op[f.XR], op[f.XC]))


@native(OPERATION)
def largest_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Run the backward pass of `largest`: add each output's gradient to that of its largest input.

    The largest input is the one in the output's window that was copied to the output. Writes
    nothing if no operation needs the input's gradient. `op`, the layer's row of the operation
    table, says where the values are in the float memory `m`. `w` is the integer memory. `setting`
    and `draws` are not used.
    """
    if op[f.DX] < 0:
        return
    lanes = (op[f.OC] + 7) // 8 * 8
    fill(m, op[f.DX], op[f.COUNT] * op[f.XS], np.float32(0))
    for n in range(op[f.COUNT]):
        for i in range(op[f.OH]):
            for j in range(op[f.OW]):
                at = op[f.DY] + n * op[f.YS] + i * op[f.YR] + j * op[f.YC]
                won = op[PLACES] + ((n * op[f.OH] + i) * op[f.OW] + j) * lanes
                for k in range(op[f.OC]):
                    m[op[f.DX] + w[won + k] + k] += m[at + k * op[f.YF]]


@compiled()
def _average(m: Float32s, op: Int64s, back: bool) -> None:
    if back:
        if op[f.DX] < 0:
            return
        fill(m, op[f.DX], op[f.COUNT] * op[f.XS], np.float32(0))
    share = np.float32(1) / np.float32(op[KH] * op[KW])
    for n in range(op[f.COUNT]):
        for i in range(op[f.OH]):
            for j in range(op[f.OW]):
                top, left = i * op[SH] - op[PH], j * op[SW] - op[PW]
                for k in range(op[f.OC]):
                    at = n * op[f.YS] + i * op[f.YR] + j * op[f.YC] + k * op[f.YF]
                    total = m[op[f.DY] + at] * share if back else np.float32(0)
                    for r in range(max(top, 0), min(top + op[KH], op[f.H])):
                        for s in range(max(left, 0), min(left + op[KW], op[f.W])):
                            x = n * op[f.XS] + r * op[f.XR] + s * op[f.XC] + k * op[f.XF]
                            if back:
                                m[op[f.DX] + x] += total
                            else:
                                total += m[op[f.X] + x]
                    if not back:
                        m[op[f.Y] + at] = total * share


@native(OPERATION)
def average(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Apply average-pooling to every example of a batch. Padding counts as zeros.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    _average(m, op, False)


@native(OPERATION)
def average_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Distribute the gradient of each output of an average-pooling evenly over its window's inputs.

    Writes nothing if no operation needs the input's gradient. `op`, the layer's row of the
    operation table, says where the values are in the float memory `m`. `w`, `setting` and `draws`
    are not used.
    """
    _average(m, op, True)


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Return a torch setting (one number or a pair) as a value for rows and one for columns."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def windows(
    shape: Shape, kernel: Sequence[int], stride: Sequence[int], border: Sequence[int]
) -> tuple[int, int]:
    """Return the number of rows and the number of columns of windows that fit over an image.

    `shape` is (channels, height, width) of the image. `kernel` (the size of a window), `stride` and
    `border` (the padding) are (height, width). Raises `NotServedError` if no window fits.
    """
    h, w = (
        (side + 2 * b - k) // s + 1
        for side, k, s, b in zip(shape[1:], kernel, stride, border, strict=True)
    )
    need(min(h, w) > 0, "a window is larger than its image")
    return h, w


_Pool = nn.MaxPool2d | nn.AvgPool2d


def pooled(shape: Shape, pool: _Pool) -> Shape:
    kernel, stride, border = pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)
    need(not pool.ceil_mode, "a pooling has ceil_mode")
    fits = 2 * border[0] <= kernel[0] and 2 * border[1] <= kernel[1]
    need(fits, "the padding of a pooling is more than half of its window")
    if isinstance(pool, nn.MaxPool2d):
        plain = pair(pool.dilation) == (1, 1) and not pool.return_indices
        need(plain, "nn.MaxPool2d has a dilation or returns indices")
    else:
        plain = pool.count_include_pad and pool.divisor_override is None
        need(plain, "nn.AvgPool2d has another divisor than the size of its window")
    return (shape[0], *windows(shape, kernel, stride, border))


def pool_numbers(pool: _Pool) -> Row:
    kernel, stride, border = pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)
    return {
        KH: kernel[0], KW: kernel[1], SH: stride[0], SW: stride[1],
        PH: border[0], PW: border[1],
    }  # fmt: skip


class Largest(Operation):
    """A max-pooling that is an operation of its own, not merged into the convolution before it."""

    layer: _Pool
    layers: ClassVar[tuple[type[nn.Module], ...]] = (nn.MaxPool2d,)
    forward, backward = largest, largest_back

    def written(self) -> Value:
        need(self.x.form == IMAGE, "the input of a pooling is not an image")
        self.x.apart = False
        return Value(pooled(self.x.shape, self.layer), IMAGE)

    def working_memory(self, memory: Memory, batch: int, changed: bool) -> Row:
        (_, h, w), lanes = self.y.shape, up(self.y.shape[0])
        return pool_numbers(self.layer) | {
            BEST: memory.floats(lanes), PLACES: memory.ints(batch * h * w * lanes),
            HIGH: self.x.shape[1], WIDE: self.x.shape[2],
        }  # fmt: skip


class Average(Largest):
    """An average-pooling. Unlike a max-pooling, it needs no working memory."""

    layers = (nn.AvgPool2d,)
    forward, backward = average, average_back

    def working_memory(self, memory: Memory, batch: int, changed: bool) -> Row:
        return pool_numbers(self.layer)

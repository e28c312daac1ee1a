"""The largest and the mean of windows, and the way back."""

from __future__ import annotations

import numpy as np

from fedveil._arrays import Float32s, Int32s, Int64s
from fedveil._kernels import compiled
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.native import OPERATION, native
from fedveil.learning.compiled.row_passes import fill
from fedveil.learning.compiled.tiles import largest_tile

_largest_8 = largest_tile(8)


@compiled()
def pool(
    m: Float32s, w: Int32s, op: Int64s, n: int, z: int, zr: int, zc: int,
    first: int, steps: tuple[int, int],
) -> None:  # fmt: skip
    """An example's largest values of z, and the places that `first` and the steps give them."""
    lanes, best = (op[f.OC] + 7) // 8 * 8, op[f.PARTS]
    # Read once: for the compiler anything that is written may be a number of the operation.
    channels, rows, columns, high, wide = op[f.OC], op[f.OH], op[f.OW], op[f.ZH], op[f.ZW]
    down, across, height, width = op[f.QSH], op[f.QSW], op[f.QKH], op[f.QKW]
    y, yr, yc, yf = op[f.Y] + n * op[f.YS], op[f.YR], op[f.YC], op[f.YF]
    won, border, left_border = op[f.PLACES] + n * rows * columns * lanes, op[f.QPH], op[f.QPW]
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
def largest(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """A max-pooling that follows no convolution."""
    for n in range(count):
        at = n * op[f.XS]
        pool(m, w, op, n, op[f.X] + at, op[f.XR], op[f.XC], at, (op[f.XR], op[f.XC]))


@native(OPERATION)
def largest_back(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """Each gradient goes to where the largest was."""
    if op[f.DX] < 0:
        return
    lanes = (op[f.OC] + 7) // 8 * 8
    fill(m, op[f.DX], count * op[f.XS], np.float32(0))
    for n in range(count):
        for i in range(op[f.OH]):
            for j in range(op[f.OW]):
                at = op[f.DY] + n * op[f.YS] + i * op[f.YR] + j * op[f.YC]
                won = op[f.PLACES] + ((n * op[f.OH] + i) * op[f.OW] + j) * lanes
                for k in range(op[f.OC]):
                    m[op[f.DX] + w[won + k] + k] += m[at + k * op[f.YF]]


@compiled()
def _average(m: Float32s, op: Int64s, count: int, back: bool) -> None:
    if back:
        if op[f.DX] < 0:
            return
        fill(m, op[f.DX], count * op[f.XS], np.float32(0))
    share = np.float32(1) / np.float32(op[f.QKH] * op[f.QKW])
    for n in range(count):
        for i in range(op[f.OH]):
            for j in range(op[f.OW]):
                top, left = i * op[f.QSH] - op[f.QPH], j * op[f.QSW] - op[f.QPW]
                for k in range(op[f.OC]):
                    at = n * op[f.YS] + i * op[f.YR] + j * op[f.YC] + k * op[f.YF]
                    total = m[op[f.DY] + at] * share if back else np.float32(0)
                    for r in range(max(top, 0), min(top + op[f.QKH], op[f.H])):
                        for s in range(max(left, 0), min(left + op[f.QKW], op[f.W])):
                            x = n * op[f.XS] + r * op[f.XR] + s * op[f.XC] + k * op[f.XF]
                            if back:
                                m[op[f.DX] + x] += total
                            else:
                                total += m[op[f.X] + x]
                    if not back:
                        m[op[f.Y] + at] = total * share


@native(OPERATION)
def average(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """The mean of a window, whose border counts as zeros."""
    _average(m, op, count, False)


@native(OPERATION)
def average_back(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """Each gradient is spread evenly."""
    _average(m, op, count, True)

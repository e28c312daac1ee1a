"""A dense layer: y = x W' + b, and the way back; and what the other operations share."""

from __future__ import annotations

import numpy as np

from fedveil._arrays import Float32s, Int32s, Int64s
from fedveil._kernels import compiled
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.native import OPERATION, call, native


@compiled()
def turn(m: Float32s, a: int, row: int, count: int, length: int, b: int, column: int) -> None:
    """Write `count` rows that begin at a as columns that begin at b."""
    for i in range(count):
        for j in range(length):
            m[b + j * column + i] = m[a + i * row + j]


@compiled()
def fill(m: Float32s, begin: int, count: int, value: np.float32) -> None:
    """Set so many entries."""
    for i in range(begin, begin + count):
        m[i] = value


@compiled()
def add_rows(m: Float32s, total: int, a: int, row: int, count: int, length: int) -> None:
    """Add `count` rows that begin at a to the row at `total`."""
    for i in range(count):
        for j in range(length):
            m[total + j] += m[a + i * row + j]


@native(OPERATION)
def dense(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """y = x W' + b, along the examples or the outputs, whichever are more."""
    inputs, outputs, row, ys = op[f.C], op[f.OC], op[f.ROW], op[f.YS]
    if outputs <= count:
        lanes = (outputs + 7) // 8 * 8
        turn(m, op[f.WEIGHT], row, outputs, inputs, op[f.TURNED], lanes)
        call(
            op[f.PRODUCT], m, op[f.Y], ys, m, op[f.BIAS], 0, m, op[f.X], op[f.XS], 1, 0,
            m, op[f.TURNED], lanes, 0, count, lanes, inputs, 1,
        )  # fmt: skip
        return
    lanes = (count + 7) // 8 * 8
    turn(m, op[f.X], op[f.XS], count, inputs, op[f.TURNED], lanes)
    call(
        op[f.PRODUCT], m, op[f.OUTPUT], lanes, m, 0, -1, m, op[f.WEIGHT], row, 1, 0,
        m, op[f.TURNED], lanes, 0, outputs, lanes, inputs, 1,
    )  # fmt: skip
    turn(m, op[f.OUTPUT], lanes, outputs, count, op[f.Y], ys)
    for n in range(count):
        add_rows(m, op[f.Y] + n * ys, op[f.BIAS], 0, 1, outputs)


@native(OPERATION)
def dense_back(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """The gradients of x, and those of W and b added `to` entries behind them."""
    row, outputs, xs, ys = op[f.ROW], op[f.OC], op[f.XS], op[f.YS]
    if op[f.DX] >= 0:
        call(
            op[f.PRODUCT], m, op[f.DX], xs, m, 0, -1, m, op[f.DY], ys, 1, 0,
            m, op[f.WEIGHT], row, 0, count, row, outputs, 1,
        )  # fmt: skip
    call(
        op[f.PRODUCT], m, op[f.WEIGHT] + to, row, m, op[f.WEIGHT] + to, row, m, op[f.DY], 1, ys, 0,
        m, op[f.X], xs, 0, outputs, row, count, 1,
    )  # fmt: skip
    if op[f.BIASED]:
        add_rows(m, op[f.BIAS] + to, op[f.DY], ys, count, outputs)

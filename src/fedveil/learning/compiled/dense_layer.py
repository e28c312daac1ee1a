"""A dense layer: y = x W' + b, and the way back.

A client with few rows needs no weights of its own. All begin a round at the same W, and a step of
plain SGD changes it by a product of few rows, H'X with H = -lr gradient: X is what came into the
layer, H has a row for each of the batch's examples. With X<, H< the rows of the earlier steps the
layer is

    W + H<' X<,   b + H<' 1

and need not be written out. A batch goes forward and backward through it by

    x W' + b + (x X<' + 1) H<        and        h W + (h H<') X<

and what the client changed in the end is one product, H'X over all its rows. That is no more to
compute, and less memory to move than a model of its own: all threads read the same W.
"""

from __future__ import annotations

import numpy as np

from fedveil._arrays import Float32s, Int32s, Int64s
from fedveil._kernels import compiled
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.native import OPERATION, call, native

#: Rows of an update that are made at once, so that they stay in the cache until all is added.
_UPDATE_ROWS = 32


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
    m: Float32s, w: Int32s, start: Float32s, op: Int64s, setting: float, draws: Float32s,
    count: int, before: int, to: int,
) -> None:  # fmt: skip
    """y = x W' + b, along the examples, since there may be more of them than of anything else."""
    inputs, outputs = op[f.C], op[f.OC]
    lanes = (count + 7) // 8 * 8
    turn(m, op[f.X], op[f.XS], count, inputs, op[f.TURNED], lanes)
    call(
        op[f.PRODUCT], m, op[f.OUTPUT], lanes, m, 0, -1, m, op[f.WEIGHT], op[f.ROW], 1, 0,
        m, op[f.TURNED], lanes, 0, outputs, lanes, inputs, 1,
    )  # fmt: skip
    turn(m, op[f.OUTPUT], lanes, outputs, count, op[f.Y], op[f.YS])
    if op[f.BIASED]:
        for n in range(count):
            add_rows(m, op[f.Y] + n * op[f.YS], op[f.BIAS], 0, 1, outputs)


@native(OPERATION)
def dense_back(
    m: Float32s, w: Int32s, start: Float32s, op: Int64s, setting: float, draws: Float32s,
    count: int, before: int, to: int,
) -> None:  # fmt: skip
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


@native(OPERATION)
def dense_of_few(
    m: Float32s, w: Int32s, start: Float32s, op: Int64s, setting: float, draws: Float32s,
    count: int, before: int, to: int,
) -> None:  # fmt: skip
    """y = x W' + b + (x X<' + 1) H<, with W, b those of the round's start."""
    inputs, room, ys = op[f.C], op[f.ROOM], op[f.YS]
    lanes = (op[f.OC] + 7) // 8 * 8
    call(
        op[f.PRODUCT], m, op[f.Y], ys, start, op[f.START_BIAS], 0, m, op[f.X], op[f.XS], 1, 0,
        start, op[f.START_TURNED], op[f.TURNED_ROW], 0, count, lanes, inputs, 1,
    )  # fmt: skip
    if before == 0:
        return
    fill(m, op[f.CROSS], count * room, np.float32(op[f.BIASED]))
    call(
        op[f.PRODUCT], m, op[f.CROSS], room, m, op[f.CROSS], room, m, op[f.X], op[f.XS], 1, 0,
        m, op[f.X_COLUMNS], room, 0, count, (before + 7) // 8 * 8, inputs, 1,
    )  # fmt: skip
    call(
        op[f.PRODUCT], m, op[f.Y], ys, m, op[f.Y], ys, m, op[f.CROSS], room, 1, 0,
        m, op[f.H_ROWS], lanes, 0, count, lanes, before, 1,
    )  # fmt: skip


@native(OPERATION)
def dense_of_few_back(
    m: Float32s, w: Int32s, start: Float32s, op: Int64s, setting: float, draws: Float32s,
    count: int, before: int, to: int,
) -> None:  # fmt: skip
    """The gradient h W + (h H<') X< of x; and x and h, kept for what follows."""
    row, outputs, room, xs, ys = op[f.ROW], op[f.OC], op[f.ROOM], op[f.XS], op[f.YS]
    lanes = (outputs + 7) // 8 * 8
    if op[f.DX] >= 0:
        call(
            op[f.PRODUCT], m, op[f.DX], xs, m, 0, -1, m, op[f.DY], ys, 1, 0,
            start, op[f.START], row, 0, count, row, outputs, 1,
        )  # fmt: skip
        if before:
            call(
                op[f.PRODUCT], m, op[f.CROSS], room, m, 0, -1, m, op[f.DY], ys, 1, 0,
                m, op[f.H_COLUMNS], room, 0, count, (before + 7) // 8 * 8, outputs, 1,
            )  # fmt: skip
            call(
                op[f.PRODUCT], m, op[f.DX], xs, m, op[f.DX], xs, m, op[f.CROSS], room, 1, 0,
                m, op[f.X_ROWS], row, 0, count, row, before, 1,
            )  # fmt: skip
    for n in range(count):
        x_row, h_row = op[f.X_ROWS] + (before + n) * row, op[f.H_ROWS] + (before + n) * lanes
        for j in range(row):
            m[x_row + j] = m[op[f.X] + n * xs + j]
        for j in range(lanes):
            m[h_row + j] = m[op[f.DY] + n * ys + j]
    turn(m, op[f.X], xs, count, op[f.C], op[f.X_COLUMNS] + before, room)
    turn(m, op[f.DY], ys, count, outputs, op[f.H_COLUMNS] + before, room)


@native("FLiF")
def write_change(m: Float32s, op: Int64s, rows: int, out: Float32s) -> None:
    """H'X and the sum of H over all rows of a client, to their places in its update."""
    inputs, outputs, row, part = op[f.C], op[f.OC], op[f.ROW], op[f.PARTS]
    lanes = (outputs + 7) // 8 * 8
    for first in range(0, outputs, _UPDATE_ROWS):
        some = min(_UPDATE_ROWS, outputs - first)
        if rows == 0:
            fill(m, part, some * row, np.float32(0))
        call(
            op[f.PRODUCT], m, part, row, m, 0, -1, m, op[f.H_ROWS] + first, 1, lanes, 0,
            m, op[f.X_ROWS], row, 0, some, row, rows, 1,
        )  # fmt: skip
        for i in range(some):
            for j in range(inputs):
                out[op[f.FLAT] + (first + i) * inputs + j] = m[part + i * row + j]
    if op[f.BIASED]:
        fill(m, part, lanes, np.float32(0))
        add_rows(m, part, op[f.H_ROWS], lanes, rows, outputs)
        for j in range(outputs):
            out[op[f.FLAT_BIAS] + j] = m[part + j]

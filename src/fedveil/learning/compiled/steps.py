"""A client's training from its first step to its last, in one call that holds no lock."""

from __future__ import annotations

import numpy as np

from fedveil._arrays import Float32s, Float64s, Int32s, Int64s
from fedveil._kernels import compiled
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.cost import cross_entropy
from fedveil.learning.compiled.native import call, native
from fedveil.learning.compiled.optimiser import LR, take_step


@compiled()
def train(
    ops: Int64s, settings: Float64s, ends: Int64s, first: int, m: Float32s, w: Int32s,
    start: Float32s, own: int, x: Float32s, y: Int64s, order: Int64s, epochs: int,
    batch: int, kind: int, plan: Float64s, draws: Float32s, places: Int64s, out: Float32s,
) -> None:  # fmt: skip
    """Train one client and write its update to `out`.

    The client's own weights are the first `own` entries of `start`, and the rest nobody's but the
    round's. Under bare SGD (kind < 0) the loss is scaled by -lr / batch and gradients are added to
    the weights themselves. `first` is the first operation that has weights.
    """
    for i in range(own):
        m[i] = start[i]
    to = 0
    if kind >= 0:
        to = own
        for i in range(own, 4 * own):
            m[i] = np.float32(0)
    examples = len(order) // epochs
    begin, step = 0, 0
    while begin < len(order):
        end = min(begin + batch, (begin // examples + 1) * examples)
        count, step, rows = end - begin, step + 1, order[begin:end]
        call(
            ends[0, f.FORWARD], m.ctypes.data, ends.ctypes.data, x.ctypes.data, rows.ctypes.data, count
        )
        some = draws.ctypes.data + begin * draws.shape[1] * draws.itemsize
        for i in range(len(ops)):
            row = ops.ctypes.data + i * ops.strides[0]
            call(ops[i, f.FORWARD], m.ctypes.data, w.ctypes.data, start.ctypes.data, row, settings[i], some, count, begin, to)
        scale = (1.0 if kind >= 0 else -plan[LR]) / count
        cross_entropy(m, ends[1], count, y, rows, scale)
        for i in range(len(ops) - 1, first - 1, -1):
            row = ops.ctypes.data + i * ops.strides[0]
            call(ops[i, f.BACKWARD], m.ctypes.data, w.ctypes.data, start.ctypes.data, row, settings[i], some, count, begin, to)
        if kind >= 0:
            take_step(m, own, start, kind, plan, step)
        begin = end
    for i in range(own):
        m[i] -= start[i]
    move(places, own, m, out, False)
    for i in range(len(ops)):
        if ops[i, f.FINISH] != 0:
            call(ops[i, f.FINISH], m.ctypes.data, ops.ctypes.data + i * ops.strides[0], len(order), out.ctypes.data)


@native("FLFLi")
def read_in(m: Float32s, entry: Int64s, x: Float32s, rows: Int64s, count: int) -> None:
    """Write a batch's examples to where the first operation reads them."""
    size = entry[f.OC] * entry[f.OH] * entry[f.OW]
    for n in range(count):
        at, example = entry[f.Y] + n * entry[f.YS], rows[n] * size
        for c in range(entry[f.OC]):
            for i in range(entry[f.OH]):
                place = at + c * entry[f.YF] + i * entry[f.YR]
                begin = example + (c * entry[f.OH] + i) * entry[f.OW]
                if entry[f.YC] == 1:
                    for j in range(entry[f.OW]):
                        m[place + j] = x[begin + j]
                else:
                    for j in range(entry[f.OW]):
                        m[place + j * entry[f.YC]] = x[begin + j]


@compiled()
def move(places: Int64s, own: int, packed: Float32s, flat: Float32s, pack: bool) -> None:
    """Between a model's vector and the weights as they are computed with.

    A row of `places` is a weight: where it begins in the vector and in the other, and for each of
    four dimensions its size and its step in both. With `pack` all are written to `packed`,
    otherwise those that begin before `own` to `flat`.
    """
    for r in range(len(places)):
        row = places[r]
        if not pack and row[1] >= own:
            continue
        for a in range(row[2]):
            for b in range(row[3]):
                for c in range(row[4]):
                    one = row[0] + a * row[6] + b * row[7] + c * row[8]
                    other = row[1] + a * row[10] + b * row[11] + c * row[12]
                    for d in range(row[5]):
                        if pack:
                            packed[other + d * row[13]] = flat[one + d * row[9]]
                        else:
                            flat[one + d * row[9]] = packed[other + d * row[13]]

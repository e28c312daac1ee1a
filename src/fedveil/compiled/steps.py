"""A client's whole training, from first step to last, in one native call without the GIL."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.lib.stride_tricks import as_strided

from fedveil.base.array_types import Float32s, Float64s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.deferred_steps import begin_steps, take_held
from fedveil.compiled.native import call, native
from fedveil.compiled.optimiser import LR


@compiled()
def train(
    ops: Int64s, settings: Float64s, ends: Int64s, first: int, m: Float32s, w: Int32s,
    start: Float32s, x: Float32s, y: int, weights: Float32s, order: Int64s, epochs: int, batch: int,
    kind: int, plan: Float64s, draws: Float32s, places: Int64s, begun: bool, hold: bool,
    out: Float32s,
) -> bool:  # fmt: skip
    """Train one client, and write its update (its new weights minus `start`) to the vector `out`.

    Returns False if the update is not finite because of deferred steps. The caller then calls again
    without `hold`. Deferred steps are stored, and added up only at the end (see `deferred_steps`).

        ops, settings, ends  the compiled model (`Program`)
        first                the index of its first operation with weights
        m, w                 the float memory, which begins with the client's weights, and the
                             integer memory
        start                the weights at the start of the round, in the layout of native code
        x, y                 all inputs of the client, and the address of its targets
        weights              the weight of each class in the loss
        order                the indices of the examples of all epochs, in the order of training
        batch                the largest number of examples in a batch
        kind, plan           the optimiser's number, and its settings (`optimiser.take_step`)
        draws                random numbers for dropout, a row for each entry of `order`
        places               the layout of the weights (`pack`)
        begun                True if m already holds `start`, as after every call
        hold                 True if steps may be deferred

    kind is negative for SGD without momentum or decay. The gradient of a batch's mean loss, times
    -learning rate, is then added directly to the weights.
    """
    size = len(start)
    if kind >= 0 or not begun:
        for i in range(size):  # an array assignment would take 1.7 s to compile
            m[i] = start[i]
    if kind >= 0:
        m[size : 4 * size] = 0
    shared = (start.ctypes.data - m.ctypes.data) // m.itemsize
    begin_steps(ops, len(order), hold, shared)
    begin, step, examples = 0, 0, len(order) // epochs
    while begin < len(order):
        end = min(begin + batch, (begin // examples + 1) * examples)
        count, step, rows = end - begin, step + 1, order[begin:end]
        call(
            ends[0, f.FORWARD], m.ctypes.data, ends.ctypes.data, x.ctypes.data, rows.ctypes.data,
            count,
        )  # fmt: skip
        some = draws.ctypes.data + begin * draws.shape[1] * draws.itemsize
        for i in range(len(ops)):
            ops[i, f.COUNT] = count
            call(
                ops[i, f.FORWARD], m.ctypes.data, w.ctypes.data, ops[i].ctypes.data, settings[i],
                some,
            )  # fmt: skip
        call(
            ends[1, f.FORWARD], m.ctypes.data, ends[1].ctypes.data, y, rows.ctypes.data,
            weights.ctypes.data, count, (1.0 if kind >= 0 else -plan[LR]) / count,
        )  # fmt: skip
        for i in range(len(ops) - 1, first - 1, -1):
            call(
                ops[i, f.BACKWARD], m.ctypes.data, w.ctypes.data, ops[i].ctypes.data, settings[i],
                some,
            )  # fmt: skip
        if kind >= 0:
            call(
                ends[1, f.TAKE_STEPS], m.ctypes.data, size, start.ctypes.data, kind,
                plan.ctypes.data, step,
            )  # fmt: skip
        begin = end
    give_change(places, ops, m, start, out)
    return take_held(ops, m, w, out)


@native("FLFLi")
def read_in(m: Float32s, entry: Int64s, x: Float32s, rows: Int64s, count: int) -> None:
    """Copy `count` examples to the input of the model's first operation.

    `x` has the client's inputs, one example after another, and `rows` the indices of the examples
    to copy. `entry` is a row of the operation table that says where the input is in the float
    memory `m`.
    """
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


def pack(places: Int64s, flat: Float32s, packed: Float32s) -> None:
    """Copy the model's vector `flat` to `packed`, the float memory with the weights' native layout.

    Each row of `places` describes one weight or bias by 15 numbers, in this order: the position of
    its first entry in `flat` and in `packed`, the lengths of its four dimensions, their strides in
    `flat`, their strides in `packed`, and the index of its operation.
    """
    for one, other, *numbers in places.tolist():
        sizes, there, here = numbers[:4], numbers[4:8], numbers[8:12]
        _strided(packed[other:], sizes, here)[:] = _strided(flat[one:], sizes, there)


def _strided(vector: Float32s, sizes: Sequence[int], steps: Sequence[int]) -> Float32s:
    return as_strided(vector, sizes, [step * vector.itemsize for step in steps])


@compiled()
def give_change(places: Int64s, ops: Int64s, m: Float32s, start: Float32s, out: Float32s) -> None:
    """Write the update (weights minus `start`) to the model's vector `out`, and reset the weights.

    The weights are in the float memory `m`, and become equal to `start` again. `places` has their
    layout, see `pack`. `ops` is the operation table.

    A weight whose SGD steps are deferred (stored instead of added to it) is skipped: it still
    equals `start`, and its entries of `out` are not written. `take_held` writes them afterwards.
    """
    for r in places:
        if ops[r[14], f.HELD] >= 0 and ops[r[14], f.FLAT] == r[0]:
            continue
        for a in range(r[2]):
            for b in range(r[3]):
                for c in range(r[4]):
                    one = r[0] + a * r[6] + b * r[7] + c * r[8]
                    other = r[1] + a * r[10] + b * r[11] + c * r[12]
                    if r[9] == 1 and r[13] == 1:
                        row, was = out[one : one + r[5]], start[other : other + r[5]]
                        new = m[other : other + r[5]]
                        for d in range(r[5]):
                            row[d], new[d] = new[d] - was[d], was[d]
                    else:
                        for d in range(r[5]):
                            at = other + d * r[13]
                            out[one + d * r[9]] = m[at] - start[at]
                            m[at] = start[at]

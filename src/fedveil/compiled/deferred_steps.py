"""Deferred SGD steps of a large weight: stored during training, and added up once at the end.

Under SGD without momentum or decay, a step adds D' X to the weight W of a dense layer. X has a row
of inputs for each example of the batch, D has a row of output gradients times -learning rate, and
D' is D transposed. X and D are stored, and W is kept unchanged. Each product with W then adds the
contribution of the stored steps, for an input x and an output gradient d:

    x (W + D' X)' = x W' + (x X') D,        d (W + D' X) = d W + (d D') X.

In this file, `m` and `w` are the float and the integer memory of a compiled model, and `op` is the
dense layer's row of the operation table. Its column HELD counts the stored rows of X and D, and is
-1 if no steps are deferred.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.native import call, native
from fedveil.compiled.operation import LINE, Memory, Row
from fedveil.compiled.product import LISTED, LISTS, VALUES, room_for_few
from fedveil.compiled.row_passes import are_finite, fill, has_zeros

#: The number of inputs and of outputs. Memory for the stored rows X and D, for products of one of
#: them with the batch, and for zeros.
(INPUTS, OUTPUTS, HELD_X, HELD_DY, MET, ZEROS) = f.own(6, VALUES + 1)
#: The least number of entries for deferring. A smaller weight fits in a fast cache.
LARGE = 1 << 18
_ZERO = np.float32(0)


def room_for_steps(memory: Memory, batch: int, outputs: int, inputs: int) -> Row:
    """Reserve memory for the deferred SGD steps of a dense layer: stored now, added up at the end.

    Returns the positions and the size of this memory, as values of columns of the operation table,
    or {} if the layer is too small for deferred steps. The layer has `inputs` inputs and `outputs`
    outputs, and a batch has up to `batch` examples. The stored inputs and gradients take at most
    half as much memory as the weight.
    """
    most = outputs * inputs // (2 * (outputs + inputs))
    if outputs % 8 or inputs % 8 or outputs * inputs < LARGE or not most:
        return {}
    return {
        f.MOST: most,
        HELD_X: memory.floats(most * _apart(inputs)),
        HELD_DY: memory.floats(most * _apart(outputs)),
        MET: memory.floats(batch * most),
        ZEROS: memory.floats(most),
        **(room_for_few(memory, most) if most > batch else {}),
    }


@compiled()
def _apart(length: int) -> int:
    """Return the distance in floats between the starts of stored rows: `length` + a cache line.

    Without the cache line, rows whose length is a large power of two would evict each other from
    the cache.
    """
    return length + LINE


@compiled()
def begin_steps(ops: Int64s, examples: int, hold: bool, shared: int) -> None:
    """Decide for each operation if a client's SGD steps are deferred: stored now, added at the end.

    The steps of an operation are deferred if `hold` is True and its reserved memory has at least
    `examples` rows. `examples` is the number of training examples in all epochs together. The
    function writes the decision to the operation table `ops`: column HELD, the number of stored
    rows, becomes 0 if steps are deferred, otherwise -1.

    Training does not change a weight with deferred steps. So the weight is read from a copy of the
    round's initial weights, which all threads share. `shared` is the distance in floats from the
    client's own copy of the weights to this copy.
    """
    for i in range(len(ops)):
        held = hold and 0 < examples <= ops[i, f.MOST]
        ops[i, f.HELD] = 0 if held else -1
        if ops[i, f.MOST] > 0:
            ops[i, f.WEIGHT] = ops[i, f.DWEIGHT] + (shared if held else 0)


@compiled()
def hold_step(m: Float32s, op: Int64s, x: int, xs: int, dy: int, ys: int, rows: int) -> None:
    """Store an SGD step of a layer, instead of adding the step to the layer's weight.

    The step is stored as `rows` rows of the layer's inputs and of its output gradients. Row n of
    the inputs begins at m[x + n xs], row n of the gradients at m[dy + n ys], in the float memory
    `m`. `op` is the layer's row of the operation table.
    """
    inputs, outputs = op[INPUTS], op[OUTPUTS]
    for n in range(rows):
        to_x = op[HELD_X] + (op[f.HELD] + n) * _apart(inputs)
        to_dy = op[HELD_DY] + (op[f.HELD] + n) * _apart(outputs)
        for i in range(inputs):
            m[to_x + i] = m[x + n * xs + i]
        for i in range(outputs):
            m[to_dy + i] = m[dy + n * ys + i]
    op[f.HELD] += rows


@compiled()
def add_to_y(m: Float32s, op: Int64s, y: int, ys: int, x: int, xs: int, rows: int) -> None:
    """Add the effect of a layer's stored SGD steps to the layer's outputs.

    The weight does not include these steps yet. Their effect is (x X') D, for the inputs x of the
    layer. X has the inputs of the stored steps, D their output gradients times -learning rate, and
    X' is X transposed. There are `rows` rows: row n of the inputs begins at m[x + n xs], row n of
    the outputs at m[y + n ys], in the float memory `m`. `op` is the layer's row of the operation
    table.
    """
    _add(m, op, y, ys, x, xs, op[HELD_X], op[INPUTS], op[HELD_DY], op[OUTPUTS], rows)


@compiled()
def add_to_dx(m: Float32s, op: Int64s, dx: int, xs: int, dy: int, ys: int, rows: int) -> None:
    """Add the effect of a layer's stored SGD steps to the gradients of the layer's inputs.

    The weight does not include these steps yet. Their effect is (dy D') X, for the output gradients
    dy of the layer. X has the inputs of the stored steps, D their output gradients times -learning
    rate, and D' is D transposed. There are `rows` rows: row n of the input gradients begins at
    m[dx + n xs], row n of dy at m[dy + n ys], in the float memory `m`. `op` is the layer's row of
    the operation table.
    """
    _add(m, op, dx, xs, dy, ys, op[HELD_DY], op[OUTPUTS], op[HELD_X], op[INPUTS], rows)


@compiled()
def _add(
    m: Float32s, op: Int64s, c: int, cm: int, a: int, am: int, met: int, length: int,
    added: int, width: int, rows: int
) -> None:  # fmt: skip
    if op[f.HELD] > 0:
        call(
            op[f.MEET_ROWS], m, op[MET], op[f.MOST], op[ZEROS], a, am, met, _apart(length),
            rows, op[f.HELD], length,
        )  # fmt: skip
        call(
            op[f.PRODUCT], m, c, cm, m, c, cm, m, op[MET], op[f.MOST], 1, 0,
            m, added, _apart(width), 0, rows, width, op[f.HELD], 1,
        )  # fmt: skip


@native("FILF")
def take_steps(m: Float32s, w: Int32s, op: Int64s, out: Float32s) -> None:
    """Write the sum of a layer's stored SGD steps to the layer's part of the update `out`.

    The sum is D' X: D has the stored output gradients times -learning rate, X the stored inputs,
    and D' is D transposed. `op` is the layer's row of the operation table. `m` and `w` are the
    float and the integer memory. If the sum is not finite, the function sets column HELD of `op` to
    -1, which `take_held` checks.
    """
    outputs, inputs, rows, finite = op[OUTPUTS], op[INPUTS], op[f.HELD], True
    a, am, b, bm = op[HELD_DY], _apart(outputs), op[HELD_X], _apart(inputs)
    few = has_zeros(m, a, am, b, bm, rows, outputs, inputs)
    for first in range(0, outputs, LISTED):
        some, c = min(LISTED, outputs - first), op[f.FLAT] + first * inputs
        if few:
            fill(out, c, some * inputs, _ZERO)
            call(
                op[f.PRODUCT_OF_FEW], out, c, inputs, m, a + first, 1, am, m, b, bm,
                some, inputs, rows, w, op[LISTS], m, op[VALUES],
            )  # fmt: skip
        else:
            call(
                op[f.PRODUCT], out, c, inputs, out, 0, -1, m, a + first, 1, am, 0,
                m, b, bm, 0, some, inputs, rows, 1,
            )  # fmt: skip
        finite &= are_finite(out, c, some * inputs)
    if not finite:
        op[f.HELD] = -1


@compiled()
def take_held(ops: Int64s, m: Float32s, w: Int32s, out: Float32s) -> bool:
    """Write the sums of all layers' stored SGD steps to the update `out`.

    Layers without stored steps are left out. Returns False if any sum is not finite. `ops` is the
    operation table, `m` the float memory and `w` the integer memory.
    """
    sound = True
    for i in range(len(ops)):
        if ops[i, f.HELD] >= 0:
            call(
                ops[i, f.TAKE_STEPS], m.ctypes.data, w.ctypes.data, ops[i].ctypes.data,
                out.ctypes.data,
            )  # fmt: skip
            sound &= ops[i, f.HELD] >= 0
    return sound

"""The steps of a large weight, held as the thin factors that they are, and taken all at the end.

Under bare SGD a step adds D' X to a dense layer's weight: of each example of its batch a row of X,
what came in, and one of D, the gradient of what went out, times the rate. To take a step is to read
and write the whole weight. While the examples of all steps so far are few, the weight W stays what
the client began with instead, and what is computed with it meets the steps as well:

    x (W + D' X)' = x W' + (x X') D,        d (W + D' X) = d W + (d D') X.

What the client gives back is D' X, one product, which is written where it belongs.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.arrays import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.native import call, native
from fedveil.compiled.operation import LINE, Memory, Row
from fedveil.compiled.product import LISTED, room_for_few
from fedveil.compiled.row_passes import are_finite, fill, has_zeros

#: A weight of fewer entries is in a near cache: its steps are taken at once.
LARGE = 1 << 18
_ZERO = np.float32(0)


def room_for_steps(memory: Memory, batch: int, outputs: int, inputs: int) -> Row:
    """What a dense layer's row says of its held steps: as many as make half of its weight."""
    most = outputs * inputs // (2 * (outputs + inputs))
    if outputs % 8 or inputs % 8 or outputs * inputs < LARGE or not most:
        return {}
    return {
        f.MOST: most,
        f.HELD_X: memory.floats(most * _apart(inputs)),
        f.HELD_DY: memory.floats(most * _apart(outputs)),
        f.MET: memory.floats(batch * most),
        f.ZEROS: memory.floats(most),
        **(room_for_few(memory, most) if most > batch else {}),
    }


@compiled()
def _apart(length: int) -> int:
    """From a held row to the next: a line between them, or rows of 2 or 4 kB evict each other."""
    return length + LINE


@compiled()
def begin_steps(ops: Int64s, examples: int, hold: bool, shared: int) -> None:
    """Say whose steps are held for a client that meets so many examples: HELD of others is -1.

    A weight whose steps are held is read where all threads read it, so far behind its own place.
    """
    for i in range(len(ops)):
        held = hold and 0 < examples <= ops[i, f.MOST]
        ops[i, f.HELD] = 0 if held else -1
        if ops[i, f.MOST] > 0:
            ops[i, f.WEIGHT] = ops[i, f.DWEIGHT] + (shared if held else 0)


@compiled()
def hold_step(m: Float32s, op: Int64s, x: int, xs: int, dy: int, ys: int, rows: int) -> None:
    """Keep a batch's rows of X and of D."""
    inputs, outputs = op[f.C], op[f.OC]
    for n in range(rows):
        to_x = op[f.HELD_X] + (op[f.HELD] + n) * _apart(inputs)
        to_dy = op[f.HELD_DY] + (op[f.HELD] + n) * _apart(outputs)
        for i in range(inputs):
            m[to_x + i] = m[x + n * xs + i]
        for i in range(outputs):
            m[to_dy + i] = m[dy + n * ys + i]
    op[f.HELD] += rows


@compiled()
def add_to_y(m: Float32s, op: Int64s, y: int, ys: int, x: int, xs: int, rows: int) -> None:
    """y += (x X') D."""
    _add(m, op, y, ys, x, xs, op[f.HELD_X], op[f.C], op[f.HELD_DY], op[f.OC], rows)


@compiled()
def add_to_dx(m: Float32s, op: Int64s, dx: int, xs: int, dy: int, ys: int, rows: int) -> None:
    """dx += (dy D') X."""
    _add(m, op, dx, xs, dy, ys, op[f.HELD_DY], op[f.OC], op[f.HELD_X], op[f.C], rows)


@compiled()
def _add(
    m: Float32s, op: Int64s, c: int, cm: int, a: int, am: int, met: int, length: int,
    added: int, width: int, rows: int
) -> None:  # fmt: skip
    """C += (A M') B, with M the held rows at `met` and B those at `added`."""
    if op[f.HELD] > 0:
        call(
            op[f.MEET_ROWS], m, op[f.MET], op[f.MOST], op[f.ZEROS], a, am, met, _apart(length),
            rows, op[f.HELD], length,
        )  # fmt: skip
        call(
            op[f.PRODUCT], m, c, cm, m, c, cm, m, op[f.MET], op[f.MOST], 1, 0,
            m, added, _apart(width), 0, rows, width, op[f.HELD], 1,
        )  # fmt: skip


@native("FILF")
def take_steps(m: Float32s, w: Int32s, op: Int64s, out: Float32s) -> None:
    """Write D' X to the model's vector, some rows at a time; HELD becomes -1 if any is odd."""
    outputs, inputs, rows, finite = op[f.OC], op[f.C], op[f.HELD], True
    a, am, b, bm = op[f.HELD_DY], _apart(outputs), op[f.HELD_X], _apart(inputs)
    few = has_zeros(m, a, am, b, bm, rows, outputs, inputs)
    for first in range(0, outputs, LISTED):
        some, c = min(LISTED, outputs - first), op[f.FLAT] + first * inputs
        if few:
            fill(out, c, some * inputs, _ZERO)
            call(
                op[f.PRODUCT_OF_FEW], out, c, inputs, m, a + first, 1, am, m, b, bm,
                some, inputs, rows, w, op[f.LISTS], m, op[f.VALUES],
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
    """Take the steps that are held; gives whether all entries of what they make are numbers."""
    sound = True
    for i in range(len(ops)):
        if ops[i, f.HELD] >= 0:
            call(
                ops[i, f.TAKE_STEPS], m.ctypes.data, w.ctypes.data, ops[i].ctypes.data,
                out.ctypes.data,
            )  # fmt: skip
            sound &= ops[i, f.HELD] >= 0
    return sound

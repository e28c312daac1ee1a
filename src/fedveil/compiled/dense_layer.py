"""A dense layer, y = x W' + b, forward and backward. W' is the transposed weight, b the bias."""

from __future__ import annotations

from math import prod

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.deferred_steps import (
    INPUTS,
    OUTPUTS,
    ZEROS,
    add_to_dx,
    add_to_y,
    hold_step,
    room_for_steps,
    take_steps,
)
from fedveil.compiled.native import OPERATION, call, native
from fedveil.compiled.operation import (
    ROW,
    TOKENS,
    Laid,
    Memory,
    Operation,
    Row,
    Value,
    filled,
    matrix,
    need,
    up,
)
from fedveil.compiled.product import LISTS, VALUES, room_for_few
from fedveil.compiled.row_passes import add_rows, has_zeros

#: The number of rows of x in an example, a flag for a weight stored as inputs by outputs, and the
#: length of a weight's row in products, a multiple of the vector length. Memory for a row of zeros.
(TIMES, ACROSS, COLUMNS, NOTHING) = f.own(4, ZEROS + 1)


@compiled()
def _products(op: Int64s) -> tuple[int, int, int, int]:
    """Return how a batch is divided into matrix products: their number, their rows, two strides.

    Each product has this number of rows. The strides are the distances between two rows of the
    layer's input and of its output, in floats. `op` is the layer's row of the operation table.
    """
    count, runs, xs, ys = op[f.COUNT], op[TIMES], op[INPUTS], op[OUTPUTS]
    if runs == 1:
        return 1, count, op[f.XS], op[f.YS]
    if op[f.XS] == runs * xs and op[f.YS] == runs * ys:  # contiguous examples need one product
        return 1, count * runs, xs, ys
    return count, runs, xs, ys


@native(OPERATION)
def dense(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Compute y = x W' + b for each row x of a dense layer's input.

    W' is the transposed weight, and b the bias. `op`, the layer's row of the operation table, says
    where the values are in the float memory `m`. `w`, `setting` and `draws` are not used.
    """
    times, rows, xs, ys = _products(op)
    for n in range(times):
        x, y = op[f.X] + n * op[f.XS], op[f.Y] + n * op[f.YS]
        if op[ACROSS]:
            call(
                op[f.PRODUCT], m, y, ys, m, op[f.BIAS], 0, m, x, xs, 1, 0,
                m, op[f.WEIGHT], op[f.ROW], 0, rows, op[OUTPUTS], op[INPUTS], 1,
            )  # fmt: skip
        else:
            call(
                op[f.MEET_ROWS], m, y, ys, op[f.BIAS], x, xs, op[f.WEIGHT], op[f.ROW],
                rows, op[OUTPUTS], op[INPUTS],
            )  # fmt: skip
            add_to_y(m, op, y, ys, x, xs, rows)


@compiled()
def _gradient_of_x(m: Float32s, op: Int64s, dy: int, dx: int, rows: int, xs: int, ys: int) -> None:
    if op[ACROSS]:
        call(
            op[f.MEET_ROWS], m, dx, xs, op[NOTHING], dy, ys, op[f.WEIGHT], op[f.ROW],
            rows, op[INPUTS], op[OUTPUTS],
        )  # fmt: skip
    else:
        call(
            op[f.PRODUCT], m, dx, xs, m, 0, -1, m, dy, ys, 1, 0,
            m, op[f.WEIGHT], op[f.ROW], 0, rows, op[COLUMNS], op[OUTPUTS], 1,
        )  # fmt: skip
        add_to_dx(m, op, dx, xs, dy, ys, rows)


@native(OPERATION)
def dense_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Compute the gradients of a dense layer's input, weight and bias.

    If the layer's SGD steps are deferred, the step is stored instead of the weight's gradient (see
    `deferred_steps`). `op`, the layer's row of the operation table, says where the values are in
    the float memory `m`. `w` is the integer memory. `setting` and `draws` are not used.
    """
    row, weight = op[f.ROW], op[f.DWEIGHT]
    times, rows, xs, ys = _products(op)
    if op[f.DX] >= 0:
        for n in range(times):
            dy, dx = op[f.DY] + n * op[f.YS], op[f.DX] + n * op[f.XS]
            _gradient_of_x(m, op, dy, dx, rows, xs, ys)
    for n in range(times):
        a, am, outputs = op[f.DY] + n * op[f.YS], ys, op[OUTPUTS]
        b, bm, inputs = op[f.X] + n * op[f.XS], xs, op[INPUTS]
        if op[f.BIASED]:
            add_rows(m, op[f.DBIAS], a, ys, rows, outputs)
        if op[f.HELD] >= 0:
            hold_step(m, op, b, bm, a, am, rows)
            continue
        if op[ACROSS]:
            a, am, outputs, b, bm, inputs = b, bm, inputs, a, am, outputs
        if has_zeros(m, a, am, b, bm, rows, outputs, inputs):
            call(
                op[f.PRODUCT_OF_FEW], m, weight, row, m, a, 1, am, m, b, bm,
                outputs, op[COLUMNS], rows, w, op[LISTS], m, op[VALUES],
            )  # fmt: skip
        else:
            call(
                op[f.PRODUCT], m, weight, row, m, weight, row, m, a, 1, am, 0,
                m, b, bm, 0, outputs, op[COLUMNS], rows, 1,
            )  # fmt: skip


class Dense(Operation):
    """A dense layer, for one row of inputs per example or per token.

    The weight is stored as [outputs, inputs]. For tokens, it is stored transposed, as [inputs,
    outputs], if there are more outputs than inputs and their number is a multiple of 8. The rows in
    memory are then longer.
    """

    layer: nn.Linear
    layers = (nn.Linear, NonDynamicallyQuantizableLinear)
    forward, backward, steps = dense, dense_back, take_steps
    products = (f.PRODUCT, f.MEET_ROWS, f.PRODUCT_OF_FEW)

    def written(self) -> Value:
        inputs, outputs = self.layer.in_features, self.layer.out_features
        if self.x.form == TOKENS:  # tokens are contiguous, so their rows must be whole vectors
            need(self.x.shape[2] == inputs, "the input of nn.Linear has another length")
            need(inputs == up(inputs), f"a token has {inputs} values, no multiple of 8")
            return Value.of_tokens(self.x.shape[0], outputs)
        fits = self.x.form == ROW and prod(self.x.shape) == inputs
        need(fits, "the input of nn.Linear has another shape")
        return Value((1, 1, outputs), ROW, apart=True)

    @property
    def _across(self) -> bool:
        inputs, outputs = self.layer.in_features, self.layer.out_features
        return self.x.form == TOKENS and outputs > inputs and outputs == up(outputs)

    @property
    def row(self) -> int:
        return filled(self.layer.weight.shape[0 if self._across else 1])

    def laid(self, weight: nn.Parameter) -> Laid:
        return matrix(weight, self.row, across=self._across)

    def working_memory(self, memory: Memory, batch: int, changed: bool) -> Row:
        inputs, outputs = self.layer.in_features, self.layer.out_features
        runs = prod(self.x.shape) // inputs
        return {
            INPUTS: inputs, OUTPUTS: outputs, TIMES: runs,
            **room_for_few(memory, batch * runs),
            ACROSS: int(self._across), COLUMNS: up(outputs if self._across else inputs),
            NOTHING: memory.floats(inputs if self._across else 0),
        }  # fmt: skip

    def deferred_memory(self, memory: Memory, batch: int) -> Row:
        if self._across or self.x.form == TOKENS:
            return {}
        return room_for_steps(memory, batch, self.layer.out_features, self.layer.in_features)

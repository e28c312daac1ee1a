"""Residual connections (a copy and a sum) and position embeddings."""

from __future__ import annotations

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.native import OPERATION, native
from fedveil.compiled.operation import TOKENS, Operation, Value, need
from fedveil.compiled.row_passes import add_rows
from fedveil.learning.residual import Branch, Join
from fedveil.learning.token_layers import Positions


@compiled()
def _add(m: Float32s, op: Int64s, back: bool, also: bool) -> None:
    for n in range(op[f.COUNT]):
        if back:
            a, b = op[f.DY] + n * op[f.YS], op[f.DX] + n * op[f.XS]
        else:
            a, b = op[f.X] + n * op[f.XS], op[f.Y] + n * op[f.YS]
        for i in range(op[f.RUN]):
            m[b + i] = m[a + i] + m[b + i] if also else m[a + i]


@native(OPERATION)
def branch(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Begin a residual connection: copy its input, so that the next layers work on the copy.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    _add(m, op, False, False)


@native(OPERATION)
def branch_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Run the backward pass of `branch`: add its output's gradient to its input's gradient.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    _add(m, op, True, True)


@native(OPERATION)
def join(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """End a residual connection: add the connection's input to the output of the layers within it.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    _add(m, op, False, True)


@native(OPERATION)
def join_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Run the backward pass of `join`: copy the sum's gradient to the connection's input gradient.

    The sum is the connection's input plus the output of the layers within the connection.
    `branch_back` later adds the gradient that comes through these layers. `op`, the layer's row of
    the operation table, says where the values are in the float memory `m`. `w`, `setting` and
    `draws` are not used.
    """
    _add(m, op, True, False)


@native(OPERATION)
def place(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Add the position embeddings to the tokens: row i of the layer's weight to token i.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    for n in range(op[f.COUNT]):
        at = op[f.X] + n * op[f.XS]
        for i in range(op[f.RUN]):
            m[at + i] += m[op[f.WEIGHT] + i]


@native(OPERATION)
def place_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Add each example's output gradient to the gradient of the layer's position embeddings.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    add_rows(m, op[f.DWEIGHT], op[f.DX], op[f.XS], op[f.COUNT], op[f.RUN])


class Copied(Operation):
    """The start of a residual connection. The following layers work on a copy of its input."""

    layers = (Branch,)
    forward, backward = branch, branch_back

    def written(self) -> Value:
        need(self.x.form == TOKENS, "a residual connection is not over tokens")
        return Value.of_tokens(self.x.shape[0], self.x.shape[2])


class Added(Operation):
    """The end of a residual connection: adds the connection's input to the output of its layers."""

    forward, backward = join, join_back

    def __init__(self, layer: Join, copied: Value, came: Value) -> None:
        self._came = came
        super().__init__(layer, copied)

    def written(self) -> Value:
        fits = self.x.shape == self._came.shape
        need(fits, "the two parts of a residual connection have different shapes")
        return self._came


class Placed(Operation):
    layer: Positions
    layers = (Positions,)
    forward, backward = place, place_back

    def written(self) -> Value:
        places, width = self.layer.weight.shape
        fits = self.x.form == TOKENS and width == self.x.shape[2] and self.x.shape[0] <= places
        need(fits, "the position embeddings do not fit the tokens")
        return self.x

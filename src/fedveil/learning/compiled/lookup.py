"""An embedding: of whole numbers, as the floats that they are, each a row of the weight."""

from __future__ import annotations

from fedveil._arrays import Float32s, Int32s, Int64s
from fedveil._kernels import compiled
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.native import OPERATION, native


@compiled()
def _meet(m: Float32s, op: Int64s, count: int, values: int, weight: int, back: bool) -> None:
    """Copy each token's row to its values, or add them to it."""
    for n in range(count):
        for t in range(op[f.OC]):
            row = weight + int(m[op[f.X] + n * op[f.XS] + t]) * op[f.ROW]
            at = values + n * op[f.YS] + t * op[f.YF]
            for j in range(op[f.OW]):
                if back:
                    m[row + j] += m[at + j]
                else:
                    m[at + j] = m[row + j]


@native(OPERATION)
def look_up(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """A row for each token."""
    _meet(m, op, count, op[f.Y], op[f.WEIGHT], False)


@native(OPERATION)
def look_up_back(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """The gradients of the rows that were looked up, added `to` entries behind them."""
    _meet(m, op, count, op[f.DY], op[f.WEIGHT] + to, True)

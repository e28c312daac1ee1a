"""What goes beside a chain and comes back: a copy, its sum, and what each token's place adds."""

from __future__ import annotations

from fedveil._arrays import Float32s, Int32s, Int64s
from fedveil._kernels import compiled
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.native import OPERATION, native
from fedveil.learning.compiled.row_passes import add_rows


@compiled()
def _add(m: Float32s, op: Int64s, count: int, back: bool, also: bool) -> None:
    """Copy each example's x to its y, or `back` the gradients; `also`: add it to what is there."""
    for n in range(count):
        if back:
            a, b = op[f.DY] + n * op[f.YS], op[f.DX] + n * op[f.XS]
        else:
            a, b = op[f.X] + n * op[f.XS], op[f.Y] + n * op[f.YS]
        for i in range(op[f.RUN]):
            m[b + i] = m[a + i] + m[b + i] if also else m[a + i]


@native(OPERATION)
def branch(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """y = x."""
    _add(m, op, count, False, False)


@native(OPERATION)
def branch_back(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """dx, which the join has begun, and dy."""
    _add(m, op, count, True, True)


@native(OPERATION)
def join(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """y + x, of the x that was copied."""
    _add(m, op, count, False, True)


@native(OPERATION)
def join_back(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """dx = dy."""
    _add(m, op, count, True, False)


@native(OPERATION)
def place(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """x + the first rows of the weight, in place."""
    for n in range(count):
        at = op[f.X] + n * op[f.XS]
        for i in range(op[f.RUN]):
            m[at + i] += m[op[f.WEIGHT] + i]


@native(OPERATION)
def place_back(
    m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s, count: int, to: int
) -> None:
    """Every example's gradient is added to that of the weight."""
    add_rows(m, op[f.WEIGHT] + to, op[f.DX], op[f.XS], count, op[f.RUN])

"""A model as rows of numbers: its operations, and where in memory each finds what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from torch import nn

from fedveil.base.arrays import Float64s, Int64s
from fedveil.compiled import fields as f
from fedveil.compiled import steps
from fedveil.compiled.chain import follow
from fedveil.compiled.cost import COSTS
from fedveil.compiled.operation import ROW, Memory, Operation, Row, Value, need, up
from fedveil.compiled.product import PRODUCTS

#: Every memory ends with so many entries that nobody reads: a vector may be longer than a row.
_SLACK = 128
#: The weights, their gradients, and two things that an optimiser remembers of each.
_STATES = 4
#: Places are int32.
_MOST = 1 << 31


@dataclass(frozen=True)
class Program:
    """The operations for batches of a size, and how much memory they take."""

    ops: Int64s
    #: An epsilon or a probability of each.
    settings: Float64s
    #: The examples as they come in, and the scores.
    ends: Int64s
    #: How many random numbers an example takes on its way.
    draws: int
    floats: int
    ints: int


class Model:
    """A chain of layers for examples of one shape."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        shape: Sequence[int],
        flat: Mapping[int, int],
        scores_of: str = ROW,
    ) -> None:
        """`flat`: where each parameter begins in the model's vector, by the parameter's id."""
        self._operations, *self._ends = follow(layers, shape, scores_of)
        #: Of an example, or of each of its tokens.
        self.scores = prod(self._ends[1].shape) if scores_of == ROW else self._ends[1].shape[2]
        first = self._operations[0].layer
        #: How many tokens there are, where examples are such; 0 where they are numbers.
        self.tokens = first.num_embeddings if isinstance(first, nn.Embedding) else 0
        #: The first operation that has weights.
        self.first = next(i for i, op in enumerate(self._operations) if op.weights())
        rows: list[list[int]] = []
        self.size, self._flat = 0, flat
        for i, op in enumerate(self._operations):
            op.weight = op.bias = self.size
            for weight, entries, lies in op.weights():
                op.bias = self.size
                rows.append([flat[id(weight)], self.size, *lies, i])
                self.size += up(entries)
            if len(op.weights()) == 1:  # without a bias: one of zeros, which nobody changes
                op.bias = self.size
                self.size += up(prod(op.y.shape))
        self.places = np.array(rows, np.int64)

    def program(self, batch: int, loss: str, kind: npt.DTypeLike, *, states: bool) -> Program:
        """The operations for batches of `batch`; `states`: an optimiser remembers something.

        Raises `NotServedError` where there are more examples than places can tell apart.
        """
        memory = Memory(self.size * (_STATES if states else 1) + _SLACK)
        first = self._operations[self.first]
        for value in dict.fromkeys([self._ends[0], *(op.y for op in self._operations)]):
            value.place = memory.floats(batch * value.size) + value.inside
            unwanted = value is first.x is not first.y
            value.gradient = -1 if unwanted else memory.floats(batch * value.size) + value.inside
        rows, draws, behind = list[Row](), 0, self.size if states else 0
        for i, op in enumerate(self._operations):
            changed = any(later.y is op.x for later in self._operations[i + 1 :])
            own = op.numbers(memory, batch, changed) | {f.DRAWS: draws}
            if not states and (held := op.held(memory, batch)):
                own |= held | {
                    f.FLAT: self._flat[id(op.layer.weight)],
                    f.TAKE_STEPS: op.steps.address(kind),
                }
            rows.append(_row(op, kind, behind) | own)
            draws += op.draws
        ends = [_geometry(value, value) | {f.H: prod(value.shape)} for value in self._ends]
        ends[0][f.FORWARD] = steps.read_in.address(kind)
        ends[1][f.FORWARD] = COSTS[loss].address(kind)
        need(max(memory.float_end, memory.int_end) < _MOST)
        return Program(
            ops=_table(row | {f.EACH: draws} for row in rows),
            settings=np.array([op.setting for op in self._operations], np.float64),
            ends=_table(ends),
            draws=draws,
            floats=memory.float_end + _SLACK,
            ints=memory.int_end + _SLACK,
        )


def _table(rows: Iterable[Row]) -> Int64s:
    """Rows of numbers by their columns; what is not said is 0."""
    return np.array([[row.get(column, 0) for column in range(f.FIELDS)] for row in rows])


def _row(op: Operation, kind: npt.DTypeLike, behind: int) -> Row:
    """What the row of each operation says; its weights' gradients lie so far behind them."""
    return _geometry(op.x, op.y) | {
        f.WEIGHT: op.weight, f.BIAS: op.bias, f.ROW: op.row, f.BIASED: int(op.biased),
        f.DWEIGHT: op.weight + behind, f.DBIAS: op.bias + behind,
        f.FORWARD: op.forward.address(kind), f.BACKWARD: op.backward.address(kind),
        **{which: PRODUCTS[which].address(kind) for which in op.products},
    }  # fmt: skip


def _geometry(x: Value, y: Value) -> Row:
    (c, h, w), (oc, oh, ow) = x.shape, y.shape
    (xr, xc, xf), (yr, yc, yf) = x.steps, y.steps
    runs = (1, 0, c * h * w) if x.apart else (h, xr, w * c)
    return {
        f.X: x.place, f.XS: x.size, f.XR: xr, f.XC: xc, f.XF: xf, f.DX: x.gradient,
        f.Y: y.place, f.YS: y.size, f.YR: yr, f.YC: yc, f.YF: yf, f.DY: y.gradient,
        f.C: c, f.H: h, f.W: w, f.OC: oc, f.OH: oh, f.OW: ow,
        f.RUNS: runs[0], f.RUN_STEP: runs[1], f.RUN: runs[2],
    }  # fmt: skip

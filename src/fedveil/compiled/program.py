"""A compiled model as an operation table: each row has the memory positions of one operation.

The columns are explained in `fields`. All values are in one float memory. Indices are in one
integer memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from torch import nn

from fedveil.base.array_types import Float64s, Int64s
from fedveil.compiled import fields as f
from fedveil.compiled import steps
from fedveil.compiled.chain import follow
from fedveil.compiled.cost import COSTS, SCORES
from fedveil.compiled.operation import ROW, Memory, Operation, Row, Value, need, up
from fedveil.compiled.optimiser import take_step
from fedveil.compiled.product import PRODUCTS

#: Unused entries at the end of each memory: a vector load may go beyond a row.
_SLACK = 128
#: The weights, their gradients, and two state values of an optimiser.
_STATES = 4
#: Positions are int32.
_MOST = 1 << 31


@dataclass(frozen=True)
class Program:
    """A compiled model: `ops`, the table of its operations, and the memory that they need.

    `floats` and `ints` are the lengths of the float memory and the integer memory. They are enough
    for batches of a limited size, the argument `batch` of `Model.program`.
    """

    ops: Int64s
    #: For each operation: the eps of a normalisation, the probability of a dropout, or 0.
    settings: Float64s
    #: Two rows with the columns of `ops`: where the input is in memory, and where the scores are.
    ends: Int64s
    #: Random numbers that one example needs.
    draws: int
    floats: int
    ints: int


class Model:
    def __init__(
        self,
        layers: Sequence[nn.Module],
        shape: Sequence[int],
        flat: Mapping[int, int],
        scores_of: Sequence[str] = (ROW,),
    ) -> None:
        """Lay out the weights of `layers` in the float memory, for examples of shape `shape`.

        The model's vector has all parameters, one after another. `flat` maps the Python `id` of
        each parameter to the position of its first entry in this vector. `scores_of` has the
        forms that the model's scores may have: `ROW` if an example has one row of scores,
        `TOKENS` if each of its tokens has a row.
        """
        self._operations, *self._ends = follow(layers, shape, scores_of)
        self._lock = threading.Lock()
        #: `ROW` if an example has one row of scores, `TOKENS` if each of its tokens has a row.
        self.scores_of = self._ends[1].form
        #: Scores of an example, or of each of its tokens.
        self.scores = prod(self._ends[1].shape) if self.scores_of == ROW else self._ends[1].shape[2]
        first = self._operations[0].layer
        #: The size of the vocabulary if examples are tokens, 0 if they are numbers.
        self.tokens = first.num_embeddings if isinstance(first, nn.Embedding) else 0
        #: The first operation with weights.
        self.first = next(i for i, op in enumerate(self._operations) if op.weights())
        rows: list[list[int]] = []
        self.size, self._flat = 0, flat
        for i, op in enumerate(self._operations):
            op.weight = op.bias = self.size
            for weight, entries, lies in op.weights():
                op.bias = self.size
                rows.append([flat[id(weight)], self.size, *lies, i])
                self.size += up(entries)
            if len(op.weights()) == 1:  # without a bias: zeros, which are never updated
                op.bias = self.size
                self.size += up(prod(op.y.shape))
        self.places = np.array(rows, np.int64)

    def program(self, batch: int, loss: str, kind: npt.DTypeLike, *, states: bool) -> Program:
        """Return the compiled model for batches of up to `batch` examples and the loss `loss`.

        `kind` is the type of all floats. If `states` is True, memory for gradients and for an
        optimiser's state is reserved. Raises `NotServedError` if the batch needs more memory than
        int32 positions can address.
        """
        with self._lock:  # threads share the model, and each batch size has its own positions
            return self._program(batch, loss, kind, states)

    def _program(self, batch: int, loss: str, kind: npt.DTypeLike, states: bool) -> Program:
        memory = Memory(self.size * (_STATES if states else 1) + _SLACK)
        first = self._operations[self.first]
        for value in dict.fromkeys([self._ends[0], *(op.y for op in self._operations)]):
            value.place = memory.floats(batch * value.size) + value.inside
            unwanted = value is first.x is not first.y
            value.gradient = -1 if unwanted else memory.floats(batch * value.size) + value.inside
        rows, draws, behind = list[Row](), 0, self.size if states else 0
        for i, op in enumerate(self._operations):
            changed = any(later.y is op.x for later in self._operations[i + 1 :])
            own = op.working_memory(memory, batch, changed) | {f.DRAWS: draws}
            if not states and (held := op.deferred_memory(memory, batch)):
                own |= held | {
                    f.FLAT: self._flat[id(op.layer.weight)],
                    f.TAKE_STEPS: op.steps.address(kind),
                }
            rows.append(_row(op, kind, behind) | own)
            draws += op.draws
        ends = [_geometry(value, value) for value in self._ends]
        ends[1][SCORES] = prod(self._ends[1].shape)
        ends[0][f.FORWARD] = steps.read_in.address(kind)
        if loss in COSTS:  # the trainer calls any other loss itself
            ends[1][f.FORWARD] = COSTS[loss].address(kind)
        if states:
            ends[1][f.TAKE_STEPS] = take_step.address(kind)
        used = max(memory.float_end, memory.int_end)
        need(used < _MOST, "a batch needs more memory than native code can address")
        return Program(
            ops=_table(row | {f.EACH: draws} for row in rows),
            settings=np.array([op.setting for op in self._operations], np.float64),
            ends=_table(ends),
            draws=draws,
            floats=memory.float_end + _SLACK,
            ints=memory.int_end + _SLACK,
        )


def _table(rows: Iterable[Row]) -> Int64s:
    rows = list(rows)
    columns = range(1 + max(max(row) for row in rows))
    return np.array([[row.get(column, 0) for column in columns] for row in rows])


def _row(op: Operation, kind: npt.DTypeLike, behind: int) -> Row:
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

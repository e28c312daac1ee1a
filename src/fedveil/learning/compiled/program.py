"""A model as rows of numbers: its operations, and where in memory each finds what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from torch import nn

from fedveil._arrays import Float64s, Int64s
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.known_layers import pair
from fedveil.learning.compiled.operations import ROW, Op, Value, follow, up, windows
from fedveil.learning.compiled.product import LISTED
from fedveil.learning.compiled.residual import Heads

#: Every memory ends with so many entries that nobody reads: a vector may be longer than a row.
SLACK = 128
#: The weights, their gradients, and two things that an optimiser remembers of each.
_STATES = 4
#: Floats of a line of the caches: a vector that lies in two is read twice.
_LINE = 16
_CURVES = {nn.ReLU: f.RELU, nn.Tanh: f.TANH, nn.Sigmoid: f.SIGMOID}

_Row = dict[int, int]


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
        self._ops, *self._ends = follow(layers, shape, scores_of)
        #: Of an example, or of each of its tokens.
        self.scores = prod(self._ends[1].shape) if scores_of == ROW else self._ends[1].shape[2]
        first = self._ops[0].layer
        #: How many tokens there are, where examples are such; 0 where they are numbers.
        self.tokens = first.num_embeddings if isinstance(first, nn.Embedding) else 0
        #: The first operation that has weights.
        self.first = next(i for i, op in enumerate(self._ops) if op.weights())
        rows: list[list[int]] = []
        self.size = 0
        for op in self._ops:
            op.weight = op.bias = self.size
            for weight, entries, steps in op.weights():
                op.bias = self.size
                rows.append([flat[id(weight)], self.size, *steps])
                self.size += up(entries)
            if len(op.weights()) == 1:  # without a bias: one of zeros, which nobody changes
                op.bias = self.size
                self.size += up(prod(op.y.shape))
        self.places = np.array(rows, np.int64)

    def program(self, batch: int, *, states: bool) -> Program:
        """The operations for batches of `batch`; `states`: an optimiser remembers something."""
        memory = _Memory(self.size * (_STATES if states else 1) + SLACK)
        first = self._ops[self.first]
        written = (op.y for op in self._ops if op.y is not op.x and op.kind != f.JOIN)
        for value in (self._ends[0], *written):
            value.place = memory.floats(batch * value.size) + value.inside
            unwanted = value is first.x is not first.y
            value.gradient = -1 if unwanted else memory.floats(batch * value.size) + value.inside
        rows, draws = [], 0
        for i, op in enumerate(self._ops):
            changed = any(later.y is op.x for later in self._ops[i + 1 :])
            rows.append(_row(op, memory, batch, changed) | {f.DRAWS: draws})
            draws += prod(op.x.shape) if op.kind == f.DROPOUT else 0
        ends = [_geometry(value, value) | {f.H: prod(value.shape)} for value in self._ends]
        settings = [getattr(op.layer, "eps", getattr(op.layer, "p", 0.0)) for op in self._ops]
        return Program(
            ops=_table(row | {f.EACH: draws} for row in rows),
            settings=np.array(settings, np.float64),
            ends=_table(ends),
            draws=draws,
            floats=memory.float_end + SLACK,
            ints=memory.int_end + SLACK,
        )


class _Memory:
    """What of the two memories is given away."""

    def __init__(self, used: int) -> None:
        self.float_end, self.int_end = used, 0

    def floats(self, count: int) -> int:
        begin = -(-self.float_end // _LINE) * _LINE
        self.float_end = begin + up(count) + _LINE
        return begin

    def ints(self, count: int) -> int:
        begin, self.int_end = self.int_end, self.int_end + up(count) + 16
        return begin


def _table(rows: Iterable[_Row]) -> Int64s:
    """Rows of numbers by their columns; what is not said is 0."""
    return np.array([[row.get(column, 0) for column in range(f.FIELDS)] for row in rows])


def _row(op: Op, memory: _Memory, batch: int, changed: bool) -> _Row:
    """`changed`: a later operation works in place on the same value."""
    biased = getattr(op.layer, "bias", None) is not None
    row = {f.KIND: op.kind, f.WEIGHT: op.weight, f.BIAS: op.bias, f.ROW: op.row}
    row |= _geometry(op.x, op.y) | {f.BIASED: int(biased)}
    match op.kind:
        case f.DENSE:
            assert isinstance(op.layer, nn.Linear)
            inputs, outputs = op.layer.in_features, op.layer.out_features
            runs = prod(op.x.shape) // inputs
            terms = batch * runs
            return row | {
                f.C: inputs, f.OC: outputs, f.RUNS: runs,
                f.LISTS: memory.ints(terms + LISTED * (1 + terms)),
                f.VALUES: memory.floats(LISTED * terms),
                f.ACROSS: int(op.across), f.COLUMNS: up(outputs if op.across else inputs),
                f.TURNED: memory.floats(inputs if op.across else 0),
            }  # fmt: skip
        case f.CONVOLUTION:
            return row | _convolution(op, memory, batch)
        case f.LARGEST | f.AVERAGE:
            (_, h, w), lanes = op.y.shape, up(op.y.shape[0])
            room = {f.PARTS: memory.floats(lanes), f.PLACES: memory.ints(batch * h * w * lanes)}
            return row | _window(op.layer) | room | {f.ZH: op.x.shape[1], f.ZW: op.x.shape[2]}
        case f.NORM:
            return row | _norm(op, memory, batch, biased)
        case f.NORM_OF_ROWS:
            tokens, _, width = op.x.shape
            return row | {
                f.ROW: width if biased else 0,
                f.PARTS: memory.floats(batch * op.x.size), f.VALUES: memory.floats(batch * tokens),
                f.TURNED: memory.floats(2 * width + 2),
            }  # fmt: skip
        case f.ATTENTION:
            return row | _attention(op, memory, batch)
        case f.POINTWISE:
            return row | _curve(op, memory, batch, changed)
    return row


def _geometry(x: Value, y: Value) -> _Row:
    (c, h, w), (oc, oh, ow) = x.shape, y.shape
    (xr, xc, xf), (yr, yc, yf) = x.steps, y.steps
    runs = (1, 0, c * h * w) if x.apart else (h, xr, w * c)
    return {
        f.X: x.place, f.XS: x.size, f.XR: xr, f.XC: xc, f.XF: xf, f.DX: x.gradient,
        f.Y: y.place, f.YS: y.size, f.YR: yr, f.YC: yc, f.YF: yf, f.DY: y.gradient,
        f.C: c, f.H: h, f.W: w, f.OC: oc, f.OH: oh, f.OW: ow,
        f.RUNS: runs[0], f.RUN_STEP: runs[1], f.RUN: runs[2],
    }  # fmt: skip


def _convolution(op: Op, memory: _Memory, batch: int) -> _Row:
    conv, border = op.layer, op.x.border
    assert isinstance(conv, nn.Conv2d)
    (kh, kw), (sh, sw) = pair(conv.kernel_size), pair(conv.stride)
    zh, zw = windows(op.x.shape, (kh, kw), (sh, sw), border)
    lanes, (_, oh, ow) = up(conv.out_channels), op.y.shape
    row = {
        f.KH: kh, f.KW: kw, f.SH: sh, f.SW: sw, f.PH: border[0], f.PW: border[1],
        f.ZH: zh, f.ZW: zw,
        f.TURNED: memory.floats(kh * kw * conv.in_channels * lanes),
        f.OUTPUT: memory.floats(zh * zw * lanes),
    }  # fmt: skip
    if op.pool is None:
        filters = conv.out_channels * kh * op.row
        return row | {f.PARTS: memory.floats(zw * kh * op.row), f.VALUES: memory.floats(filters)}
    most = batch * oh * ow
    return row | _window(op.pool) | {
        f.POOLED: 1, f.PARTS: memory.floats(lanes), f.PLACES: memory.ints(most * lanes),
        f.LISTS: memory.ints(most), f.VALUES: memory.floats(most),
    }  # fmt: skip


def _window(pool: nn.Module) -> _Row:
    assert isinstance(pool, nn.MaxPool2d | nn.AvgPool2d)
    kernel, stride, border = pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)
    return {
        f.QKH: kernel[0], f.QKW: kernel[1], f.QSH: stride[0], f.QSW: stride[1],
        f.QPH: border[0], f.QPW: border[1],
    }  # fmt: skip


def _norm(op: Op, memory: _Memory, batch: int, biased: bool) -> _Row:
    (c, h, w), groups = op.x.shape, getattr(op.layer, "num_groups", 0)
    size, index = (c, (0, 0, 1)) if groups else (c * h * w, (w, 1, h * w))
    size = size if biased else 0
    return {
        f.GROUPS: groups or 1, f.AR: index[0], f.AC: index[1], f.AF: index[2], f.ROW: size,
        f.PARTS: memory.floats(batch * op.x.size) + op.x.inside,
        f.VALUES: memory.floats(batch * (groups or 1)), f.TURNED: memory.floats(2 * size),
        f.PLACES: memory.ints(2 * c * h * w),
    }  # fmt: skip


def _attention(op: Op, memory: _Memory, batch: int) -> _Row:
    assert isinstance(op.layer, Heads)
    tokens, pairs = op.x.shape[0], op.x.shape[0] * op.row
    return {
        f.GROUPS: op.layer.heads, f.CAUSAL: int(op.layer.causal),
        f.PARTS: memory.floats(batch * op.layer.heads * pairs), f.VALUES: memory.floats(pairs),
        f.TURNED: memory.floats(tokens),
    }  # fmt: skip


def _curve(op: Op, memory: _Memory, batch: int, changed: bool) -> _Row:
    curve = _CURVES.get(type(op.layer))
    if curve is not None and not changed:
        return {f.CURVE: curve, f.PARTS: op.x.place}
    kept = memory.floats(batch * op.x.size) + op.x.inside
    exact = getattr(op.layer, "approximate", "none") == "none"
    gelu = f.GELU if exact else f.GELU_TANH
    return {f.CURVE: gelu if curve is None else curve, f.PARTS: kept}

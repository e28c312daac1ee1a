"""A model as rows of numbers: its operations, and where in memory each finds what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from torch import nn

from fedveil._arrays import Float64s, Int64s
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.reading import ordered, pair

#: Every memory ends with so many entries that nobody reads: a vector may be longer than a row.
_SLACK = 128
_SGD_STATES = 4
#: Up to how many rows it pays a client to have no dense weights of its own, for each of the layers'
#: m n / (m + n): with more, its rows are as dear as the weights.
_ROWS_FOR_WIDTH = 0.8


class NotServedError(Exception):
    """The layers, or their order, are not what is compiled; torch knows what is wrong, if it is."""


@dataclass
class Value:
    """What lies between two operations, for each example of a batch."""

    shape: tuple[int, int, int]
    #: Rows and columns of zeros around it, which a convolution reads.
    border: tuple[int, int] = (0, 0)
    #: Channels after one another, as torch has them, and not side by side.
    apart: bool = False
    place: int = 0
    gradient: int = -1

    @property
    def steps(self) -> tuple[int, int, int]:
        """From a row, a column, a channel to the next."""
        c, h, w = self.shape
        return (w, 1, h * w) if self.apart else ((w + 2 * self.border[1]) * c, c, 1)

    @property
    def size(self) -> int:
        """Entries of an example."""
        c, h, w = self.shape
        border = 0 if self.apart else 2 * self.border[0] * self.steps[0]
        return _row(c * h * w if self.apart else h * self.steps[0] + border)

    @property
    def inside(self) -> int:
        """Where its first row begins."""
        return 0 if self.apart else self.border[0] * self.steps[0] + self.border[1] * self.steps[1]


@dataclass
class Op:
    """An operation: its kind, its layer, what it reads and writes."""

    kind: int
    layer: nn.Module
    x: Value
    y: Value
    pool: nn.MaxPool2d | None = None
    weight: int = 0
    bias: int = 0
    turned: int = 0

    @property
    def biased(self) -> bool:
        return getattr(self.layer, "bias", None) is not None

    @property
    def row(self) -> int:
        """How long a row of its weight is, filled up."""
        if isinstance(self.layer, nn.Conv2d):
            return _up(self.layer.kernel_size[1] * self.layer.in_channels)
        return _row(prod(self.x.shape))


@dataclass
class Program:
    """The operations for batches of a size, and how much memory they take."""

    ops: Int64s
    settings: Float64s
    #: The examples as they come in, and the scores.
    ends: Int64s
    #: The first operation that has weights, and how many entries those of a client of its own have.
    first: int
    own: int
    #: How many random numbers an example takes on its way.
    draws: int
    floats: int
    ints: int


class Model:
    """A chain of layers for examples of one shape."""

    def __init__(self, layers: Sequence[nn.Module], shape: tuple[int, ...], flat: dict[int, int]):
        """`flat`: where each parameter begins in the model's vector, by the parameter's id."""
        self._flat = flat
        self.ops: list[Op] = []
        self._read(ordered(layers), shape)
        self._place_weights()

    # What follows what.

    def _read(self, layers: Sequence[nn.Module], shape: tuple[int, ...]) -> None:
        if len(shape) not in (1, 3) or min(shape) < 1:
            raise NotServedError("an example is a row or an image")
        value = Value((1, 1, shape[0]) if len(shape) == 1 else tuple(shape), apart=True)  # type: ignore[arg-type]
        flat = len(shape) == 1
        self.entry = value
        i = 0
        while i < len(layers):
            layer = layers[i]
            after = layers[i + 1] if i + 1 < len(layers) else None
            pool = after if isinstance(layer, nn.Conv2d) and isinstance(after, nn.MaxPool2d) else None
            i += 2 if pool is not None else 1
            if isinstance(layer, nn.Flatten):
                if (layer.start_dim, layer.end_dim) != (1, -1):
                    raise NotServedError("flattening a part")
                value.apart, flat = True, True
                continue
            value = self._add(layer, pool, value, flat)
        if not flat:
            raise NotServedError("the scores are no row")
        self.ends = (self.entry, value)
        self.classes = prod(value.shape)
        sizes = [(prod(op.x.shape), prod(op.y.shape)) for op in self.ops if op.kind == f.DENSE]
        weights = sum(m * n for m, n in sizes)
        self.most_rows = _ROWS_FOR_WIDTH * weights / max(1, sum(map(sum, sizes)))
        self.first = next(i for i, op in enumerate(self.ops) if [*op.layer.parameters()])

    def _add(self, layer: nn.Module, pool: nn.MaxPool2d | None, x: Value, flat: bool) -> Value:
        match layer:
            case nn.Linear():
                if not flat or prod(x.shape) != layer.in_features:
                    raise NotServedError("a dense layer of other rows")
                y, kind = Value((1, 1, layer.out_features), apart=True), f.DENSE
            case nn.Conv2d():
                y, kind = self._after_convolution(layer, pool, x, flat), f.CONVOLUTION
            case nn.MaxPool2d():
                _check_pool(layer)
                y, kind = Value(_pooled(x.shape, layer, flat)), f.LARGEST
                _side_by_side(x)
            case nn.AvgPool2d():
                if layer.ceil_mode or not layer.count_include_pad or layer.divisor_override:
                    raise NotServedError("a mean of another kind")
                y, kind = Value(_pooled(x.shape, layer, flat)), f.AVERAGE
                _side_by_side(x)
            case nn.GroupNorm():
                if flat or layer.num_channels != x.shape[0]:
                    raise NotServedError("groups of other channels")
                y, kind = x, f.NORM
            case nn.LayerNorm():
                shape = x.shape[2:] if flat else x.shape
                if tuple(layer.normalized_shape) != shape or (flat and x.shape[:2] != (1, 1)):
                    raise NotServedError("a part of an example")
                if layer.bias is None and layer.weight is not None:
                    raise NotServedError("a weight without a bias")
                y, kind = x, f.NORM
            case nn.Dropout():
                y, kind = x, f.DROPOUT
            case _:
                y, kind = x, f.POINTWISE
        self.ops.append(Op(kind, layer, x, y, pool))
        return y

    def _after_convolution(
        self, conv: nn.Conv2d, pool: nn.MaxPool2d | None, x: Value, flat: bool
    ) -> Value:
        plain = conv.groups == 1 and conv.dilation == (1, 1) and conv.padding_mode == "zeros"
        if flat or not plain or isinstance(conv.padding, str) or conv.in_channels != x.shape[0]:
            raise NotServedError("a convolution of another kind")
        _side_by_side(x)
        border = pair(conv.padding)
        x.border = border
        shape = (conv.out_channels, *_windows(x.shape, conv.kernel_size, conv.stride, border))
        if pool is not None:
            _check_pool(pool)
            shape = _pooled(shape, pool, False)
        return Value(shape)

    # Where the weights lie.

    def _place_weights(self) -> None:
        """Those of dense layers last: a client with few rows has none of its own."""
        rows: list[list[int]] = []
        end = 0

        def place(parameter: nn.Parameter | None, size: int, sizes: Sequence[int], to: Sequence[int],
                  order: Sequence[int] | None = None) -> int:  # fmt: skip
            """Room for a weight; `sizes` are its dimensions, `to` their steps here."""
            nonlocal end
            begin, end = end, end + _up(size)
            if parameter is not None:
                steps = [prod(parameter.shape[i + 1 :]) for i in range(parameter.ndim)]
                steps = [*[0] * (4 - len(steps)), *steps]
                dims = [*[1] * (4 - len(sizes)), *sizes]
                there = [*[0] * (4 - len(to)), *to]
                which = order or range(4)
                picked = [[values[i] for i in which] for values in (dims, steps, there)]
                rows.append([self._flat[id(parameter)], begin, *picked[0], *picked[1], *picked[2]])
            return begin

        dense = [op for op in self.ops if op.kind == f.DENSE]
        for op in self.ops:
            layer, row = op.layer, op.row
            if isinstance(layer, nn.Conv2d):
                o, c, (r, s) = layer.out_channels, layer.in_channels, layer.kernel_size
                to = (r * row, 1, row, c)
                op.weight = place(layer.weight, o * r * row, (o, c, r, s), to, (0, 2, 3, 1))
                op.bias = place(layer.bias, o, (o,), (1,))
            elif op.kind == f.NORM and layer.weight is not None:
                size = layer.weight.numel()  # type: ignore[operator]
                op.weight = place(layer.weight, size, (size,), (1,))  # type: ignore[arg-type]
                op.bias = place(layer.bias, size, (size,), (1,))  # type: ignore[arg-type]
        self.small = end
        for op in dense:
            assert isinstance(op.layer, nn.Linear)
            o, i = op.layer.weight.shape
            op.weight = place(op.layer.weight, o * op.row, (o, i), (op.row, 1))
            op.bias = place(op.layer.bias, o, (o,), (1,))
        self.all = end
        for op in dense:
            assert isinstance(op.layer, nn.Linear)
            o, i = op.layer.weight.shape
            turned = _row(o)
            op.turned = place(op.layer.weight, i * turned, (o, i), (1, turned), (0, 1, 3, 2))
        self.places = np.array(rows, np.int64)
        self.start_size = end + _SLACK

    # Where everything else lies.

    def program(self, batch: int, *, few: int = 0, states: bool = False) -> Program:
        """The operations for batches of `batch`; `few`: room for the rows of a client with few."""
        memory = _Memory((self.small if few else self.all) * (_SGD_STATES if states else 1))
        own = self.small if few else self.all
        for value in self._values():
            value.place = memory.floats(batch * value.size) + value.inside
            wanted = value is not self.entry_of_first
            value.gradient = memory.floats(batch * value.size) + value.inside if wanted else -1
        rows, numbers, draws = [], [], 0
        for op in self.ops:
            rows.append(self._columns(op, memory, batch, few))
            if op.kind == f.DROPOUT:
                rows[-1][f.DRAWS], draws = draws, draws + prod(op.x.shape)
            numbers.append(float(getattr(op.layer, "eps", getattr(op.layer, "p", 0.0))))
        for row in rows:
            row[f.EACH] = draws
        return Program(
            ops=_table(rows), settings=np.array(numbers), ends=_table(map(_ends, self.ends)),
            first=self.first, own=own, draws=draws,
            floats=memory.float_end + _SLACK, ints=memory.int_end + _SLACK,
        )  # fmt: skip

    def _values(self) -> list[Value]:
        return [self.entry, *(op.y for op in self.ops if op.y is not op.x)]

    @property
    def entry_of_first(self) -> Value | None:
        """What the first weights read, whose gradient nobody wants; none where it is changed."""
        op = self.ops[self.first]
        return None if op.y is op.x else op.x

    def _columns(self, op: Op, memory: _Memory, batch: int, few: int) -> dict[int, int]:
        columns = {f.KIND: op.kind, f.WEIGHT: op.weight, f.BIAS: op.bias, f.ROW: op.row}
        columns |= _geometry(op.x, op.y) | {f.BIASED: int(op.biased)}
        columns |= _runs(op.x)
        match op.kind:
            case f.DENSE:
                columns |= {f.C: prod(op.x.shape), f.OC: prod(op.y.shape)}
                if not few:
                    return columns | _dense(op, memory, batch)
                flat = self._flat[id(op.layer.weight)], self._flat.get(id(op.layer.bias), 0)
                columns |= {f.FLAT: flat[0], f.FLAT_BIAS: flat[1]}
                return columns | _few_rows(op, memory, batch, few)
            case f.CONVOLUTION:
                return columns | _convolution(op, memory, batch)
            case f.LARGEST | f.AVERAGE:
                return columns | _alone(op, memory, batch)
            case f.NORM:
                return columns | _norm(op, memory, batch)
            case f.POINTWISE:
                return columns | _curve(op, memory, batch)
        return columns


class _Memory:
    """What of the two memories is given away."""

    def __init__(self, used: int) -> None:
        self.float_end, self.int_end = used, 0

    def floats(self, count: int) -> int:
        begin, self.float_end = self.float_end, self.float_end + _up(count) + 16
        return begin

    def ints(self, count: int) -> int:
        begin, self.int_end = self.int_end, self.int_end + _up(count) + 16
        return begin


def _dense(op: Op, memory: _Memory, batch: int) -> dict[int, int]:
    inputs, outputs, lanes = prod(op.x.shape), prod(op.y.shape), _up(batch)
    return {
        f.TURNED: memory.floats(inputs * lanes),
        f.OUTPUT: memory.floats(outputs * lanes),
    }


def _few_rows(op: Op, memory: _Memory, batch: int, few: int) -> dict[int, int]:
    inputs, outputs, room = prod(op.x.shape), prod(op.y.shape), _up(few)
    return {
        f.KIND: f.FEW_ROWS,
        f.START: op.weight,
        f.START_BIAS: op.bias,
        f.START_TURNED: op.turned,
        f.TURNED_ROW: _row(outputs),
        f.ROOM: room,
        f.X_ROWS: memory.floats(room * op.row),
        f.X_COLUMNS: memory.floats(inputs * room),
        f.H_ROWS: memory.floats(room * _up(outputs)),
        f.H_COLUMNS: memory.floats(outputs * room),
        f.CROSS: memory.floats(batch * room),
        f.PARTS: memory.floats(32 * op.row + _up(outputs)),
    }


def _convolution(op: Op, memory: _Memory, batch: int) -> dict[int, int]:
    conv = op.layer
    assert isinstance(conv, nn.Conv2d)
    (kh, kw), (sh, sw), border = pair(conv.kernel_size), pair(conv.stride), pair(conv.padding)  # type: ignore[arg-type]
    zh, zw = _windows(op.x.shape, (kh, kw), (sh, sw), border)
    lanes, filters = _up(conv.out_channels), conv.out_channels * kh * op.row
    columns = {
        f.KH: kh, f.KW: kw, f.SH: sh, f.SW: sw, f.PH: border[0], f.PW: border[1], f.ZH: zh, f.ZW: zw,
        f.TURNED: memory.floats(kh * kw * conv.in_channels * lanes),
        f.OUTPUT: memory.floats(zh * zw * lanes),
    }  # fmt: skip
    if op.pool is None:
        return columns | {
            f.PARTS: memory.floats(zw * kh * op.row), f.VALUES: memory.floats(filters)
        }  # fmt: skip
    most = batch * op.y.shape[1] * op.y.shape[2]
    return columns | _window(op.pool) | {
        f.POOLED: 1, f.PARTS: memory.floats(lanes), f.PLACES: memory.ints(most * lanes),
        f.LISTS: memory.ints(most), f.VALUES: memory.floats(most),
    }  # fmt: skip


def _alone(op: Op, memory: _Memory, batch: int) -> dict[int, int]:
    c, h, w = op.y.shape
    assert isinstance(op.layer, nn.MaxPool2d | nn.AvgPool2d)
    return _window(op.layer) | {
        f.ZH: op.x.shape[1], f.ZW: op.x.shape[2], f.PARTS: memory.floats(_up(c)),
        f.PLACES: memory.ints(batch * h * w * _up(c)),
    }  # fmt: skip


def _window(pool: nn.MaxPool2d | nn.AvgPool2d) -> dict[int, int]:
    kernel, stride, border = pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)
    return {
        f.QKH: kernel[0], f.QKW: kernel[1], f.QSH: stride[0], f.QSW: stride[1],
        f.QPH: border[0], f.QPW: border[1],
    }  # fmt: skip


def _norm(op: Op, memory: _Memory, batch: int) -> dict[int, int]:
    size = op.layer.weight.numel() if op.biased else 0  # type: ignore[operator, union-attr]
    groups = op.layer.num_groups if isinstance(op.layer, nn.GroupNorm) else 1
    _, h, w = op.x.shape
    index = (0, 0, 1) if isinstance(op.layer, nn.GroupNorm) else (w, 1, h * w)
    return {
        f.GROUPS: groups, f.AR: index[0], f.AC: index[1], f.AF: index[2], f.ROW: size,
        f.PARTS: memory.floats(batch * op.x.size) + op.x.inside,
        f.VALUES: memory.floats(batch * groups), f.TURNED: memory.floats(2 * size),
    }  # fmt: skip


def _curve(op: Op, memory: _Memory, batch: int) -> dict[int, int]:
    kinds = {nn.ReLU: f.RELU, nn.Tanh: f.TANH, nn.Sigmoid: f.SIGMOID}
    kind = kinds.get(type(op.layer))  # type: ignore[call-overload]
    if kind is not None:
        return {f.CURVE: kind}
    exact = op.layer.approximate == "none"
    return {
        f.CURVE: f.GELU if exact else f.GELU_TANH,
        f.PARTS: memory.floats(batch * op.x.size) + op.x.inside,
    }


def _geometry(x: Value, y: Value) -> dict[int, int]:
    (c, h, w), (oc, oh, ow) = x.shape, y.shape
    (xr, xc, xf), (yr, yc, yf) = x.steps, y.steps
    return {
        f.X: x.place, f.XS: x.size, f.XR: xr, f.XC: xc, f.XF: xf, f.DX: x.gradient,
        f.Y: y.place, f.YS: y.size, f.YR: yr, f.YC: yc, f.YF: yf, f.DY: y.gradient,
        f.C: c, f.H: h, f.W: w, f.OC: oc, f.OH: oh, f.OW: ow,
    }  # fmt: skip


def _ends(value: Value) -> dict[int, int]:
    return _geometry(value, value) | {f.H: prod(value.shape)}


def _table(rows: Iterable[dict[int, int]]) -> Int64s:
    """Rows of numbers by their columns; what is not said is 0."""
    return np.array([[row.get(column, 0) for column in range(f.FIELDS)] for row in rows])


def _runs(x: Value) -> dict[int, int]:
    c, h, w = x.shape
    if x.apart:
        return {f.RUNS: 1, f.RUN_STEP: 0, f.RUN: c * h * w}
    return {f.RUNS: h, f.RUN_STEP: x.steps[0], f.RUN: w * c}


def _side_by_side(x: Value) -> None:
    x.apart = False


def _check_pool(pool: nn.MaxPool2d) -> None:
    if pair(pool.dilation) != (1, 1) or pool.ceil_mode or pool.return_indices:
        raise NotServedError("a pooling of another kind")


def _pooled(shape: Sequence[int], pool: nn.MaxPool2d | nn.AvgPool2d, flat: bool) -> tuple[int, int, int]:
    kernel, stride, border = pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)
    if flat or 2 * border[0] > kernel[0] or 2 * border[1] > kernel[1]:
        raise NotServedError("a pooling of a row, or of a border alone")
    return (shape[0], *_windows(shape, kernel, stride, border))


def _windows(
    shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int], border: Sequence[int]
) -> tuple[int, int]:
    found = [
        (side + 2 * b - k) // s + 1
        for side, k, s, b in zip(shape[1:], kernel, stride, border, strict=True)
    ]
    if min(found) < 1:
        raise NotServedError("a window that is larger than the image")
    return (found[0], found[1])


def _up(count: int) -> int:
    """Filled up to whole vectors."""
    return -(-count // 8) * 8


def _row(length: int) -> int:
    """The same for rows that lie below each other: those of whole 4 kB evict each other."""
    row = _up(length)
    return row + 16 if row % 1024 == 0 else row

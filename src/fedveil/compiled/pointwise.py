"""Element-wise operations: activations and dropout, in place."""

from __future__ import annotations

import math
from math import prod

import numpy as np
from torch import nn

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.native import OPERATION, native
from fedveil.compiled.operation import Memory, Operation, Row, Value

#: The activation, and the position of the values that the backward pass needs.
(CURVE, KEPT) = f.own(2)
(_RELU, _TANH, _SIGMOID, _GELU, _GELU_TANH) = range(5)
#: The monotone activations, which commute with max-pooling. Their backward pass reads the output.
RISING = {nn.ReLU: _RELU, nn.Tanh: _TANH, nn.Sigmoid: _SIGMOID}

_ZERO, _ONE = np.float32(0), np.float32(1)
_ROOT_HALF, _PEAK = math.sqrt(1 / 2), 1 / math.sqrt(2 * math.pi)
#: Constants of the tanh approximation of GELU.
_SLOPE, _CUBE = math.sqrt(2 / math.pi), 0.044715


@native(OPERATION)
def curve(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Apply an activation to all values in place, and save the values that `curve_back` needs.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    for n in range(op[f.COUNT]):
        for run in range(op[f.RUNS]):
            begin = n * op[f.XS] + run * op[f.RUN_STEP]
            x = op[f.X] + begin
            if op[CURVE] == _RELU:
                for i in range(x, x + op[f.RUN]):
                    m[i] = _ZERO if m[i] <= _ZERO else m[i]
            elif op[CURVE] == _TANH:
                for i in range(x, x + op[f.RUN]):
                    m[i] = math.tanh(m[i])
            elif op[CURVE] == _SIGMOID:
                for i in range(x, x + op[f.RUN]):
                    m[i] = _ONE / (_ONE + math.exp(-m[i]))
            else:
                kept = op[KEPT] + begin
                for i in range(op[f.RUN]):
                    value = m[x + i]
                    m[kept + i] = value
                    if op[CURVE] == _GELU:
                        m[x + i] = 0.5 * value * (1 + math.erf(value * _ROOT_HALF))
                    else:
                        inner = _SLOPE * (value + _CUBE * value * value * value)
                        m[x + i] = 0.5 * value * (1 + math.tanh(inner))
            if op[CURVE] < _GELU and op[KEPT] != op[f.X]:
                for i in range(op[f.RUN]):
                    m[op[KEPT] + begin + i] = m[x + i]


@native(OPERATION)
def curve_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Multiply gradients in place by the derivative of the activation that `curve` applied.

    Changes nothing if no operation needs the gradient. `op`, the layer's row of the operation
    table, says where the values are in the float memory `m`. `w`, `setting` and `draws` are not
    used.
    """
    if op[f.DX] < 0:
        return
    for n in range(op[f.COUNT]):
        for run in range(op[f.RUNS]):
            begin = n * op[f.XS] + run * op[f.RUN_STEP]
            g, kept = op[f.DX] + begin, op[KEPT] + begin
            if op[CURVE] == _RELU:
                for i in range(op[f.RUN]):
                    value = m[g + i]  # read unconditionally, to avoid a branch
                    m[g + i] = _ZERO if m[kept + i] <= _ZERO else value
            elif op[CURVE] == _TANH:
                for i in range(op[f.RUN]):
                    m[g + i] *= _ONE - m[kept + i] * m[kept + i]
            elif op[CURVE] == _SIGMOID:
                for i in range(op[f.RUN]):
                    m[g + i] *= (_ONE - m[kept + i]) * m[kept + i]
            elif op[CURVE] == _GELU:
                for i in range(op[f.RUN]):
                    x = m[kept + i]
                    below = 0.5 * (1 + math.erf(x * _ROOT_HALF))
                    m[g + i] *= below + x * _PEAK * math.exp(-0.5 * x * x)
            else:
                for i in range(op[f.RUN]):
                    x = m[kept + i]
                    t = math.tanh(_SLOPE * (x + _CUBE * x * x * x))
                    m[g + i] *= 0.5 * (1 + t + x * (1 - t * t) * _SLOPE * (1 + 3 * _CUBE * x * x))


@compiled()
def _drop(m: Float32s, op: Int64s, p: float, draws: Float32s, at: int) -> None:
    share = 0.0 if p >= 1 else 1 / (1 - p)
    for n in range(op[f.COUNT]):
        for run in range(op[f.RUNS]):
            begin = at + n * op[f.XS] + run * op[f.RUN_STEP]
            draw = n * op[f.EACH] + op[f.DRAWS] + run * op[f.RUN]
            for i in range(op[f.RUN]):
                m[begin + i] = m[begin + i] * share if draws[draw + i] >= p else _ZERO


@native(OPERATION)
def drop(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Apply dropout in place: zero each value with probability `setting`, scale up the others.

    A value becomes 0 if its random number in `draws` is below `setting`. `op`, the layer's row of
    the operation table, says where the values are in the float memory `m`. `w` is not used.
    """
    _drop(m, op, setting, draws, op[f.X])


@native(OPERATION)
def drop_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Set gradients to 0 or scale them up in place, as `drop` did with the values.

    `setting` and `draws` are those of the call of `drop`. `op`, the layer's row of the operation
    table, says where the values are in the float memory `m`. `w` is not used.
    """
    _drop(m, op, setting, draws, op[f.DX])


class Curve(Operation):
    """An activation layer."""

    layers = (*RISING, nn.GELU)
    forward, backward = curve, curve_back

    def working_memory(self, memory: Memory, batch: int, changed: bool) -> Row:
        which = RISING.get(type(self.layer))
        if which is not None and not changed:
            return {CURVE: which, KEPT: self.x.place}
        kept = memory.floats(batch * self.x.size) + self.x.inside
        exact = getattr(self.layer, "approximate", "none") == "none"
        gelu = _GELU if exact else _GELU_TANH
        return {CURVE: gelu if which is None else which, KEPT: kept}


class Drop(Operation):
    layer: nn.Dropout
    layers = (nn.Dropout,)
    forward, backward = drop, drop_back

    def written(self) -> Value:
        self.setting, self.draws = self.layer.p, prod(self.x.shape)
        return self.x

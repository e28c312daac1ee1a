"""Steps of the optimisers SGD, Adam, AdamW and Adagrad, as in torch."""

from __future__ import annotations

import math

import numpy as np

from fedveil.base.array_types import Float32s, Float64s
from fedveil.compiled.native import native

(SGD, ADAM, ADAMW, ADAGRAD) = range(4)
#: The numbers of a plan, in this order.
(LR, MOMENTUM, WEIGHT_DECAY, PROXIMAL, GRADIENT_NORM) = range(5)
_BETA_1, _BETA_2, _EPS, _ADAGRAD_EPS, _NORM_EPS = 0.9, 0.999, 1e-8, 1e-10, 1e-6


@native("FiFiDi")
def take_step(
    w: Float32s, size: int, start: Float32s, kind: int, plan: Float64s, step: int
) -> None:
    """Update the weights w[:size] by one step of an optimiser, and reset their gradient to zero.

    The gradient is w[size : 2 * size], and is followed by the optimiser's state. `start` holds the
    weights at the start of the round. `kind` is the optimiser's number (such as `ADAM`), and `plan`
    has its settings, in the order LR, MOMENTUM, ... `step` is the number of the step, from 1 on.
    """
    g, first, second = size, 2 * size, 3 * size
    decay = plan[WEIGHT_DECAY]
    if plan[PROXIMAL] > 0:
        for i in range(size):
            w[g + i] += plan[PROXIMAL] * (w[i] - start[i])
    if plan[GRADIENT_NORM] >= 0:
        total = 0.0
        for i in range(size):
            total += w[g + i] * w[g + i]
        factor = plan[GRADIENT_NORM] / (math.sqrt(total) + _NORM_EPS)
        if not factor > 1:
            for i in range(size):
                w[g + i] *= factor
    if kind == ADAMW:
        for i in range(size):
            w[i] -= plan[LR] * decay * w[i]
    elif decay != 0:
        for i in range(size):
            w[g + i] += decay * w[i]
    if kind == SGD:
        if plan[MOMENTUM] != 0:
            for i in range(size):
                w[first + i] = w[g + i] + (plan[MOMENTUM] * w[first + i] if step > 1 else 0.0)
                w[g + i] = w[first + i]
        for i in range(size):
            w[i] -= plan[LR] * w[g + i]
    elif kind == ADAGRAD:
        for i in range(size):
            w[first + i] += w[g + i] * w[g + i]
            w[i] -= plan[LR] * w[g + i] / (math.sqrt(w[first + i]) + _ADAGRAD_EPS)
    else:
        short, root = plan[LR] / (1 - _BETA_1**step), math.sqrt(1 - _BETA_2**step)
        for i in range(size):
            w[first + i] += (1 - _BETA_1) * (w[g + i] - w[first + i])
            w[second + i] = _BETA_2 * w[second + i] + (1 - _BETA_2) * w[g + i] * w[g + i]
            w[i] -= short * w[first + i] / (math.sqrt(w[second + i]) / root + _EPS)
    for i in range(size):
        w[g + i] = np.float32(0)

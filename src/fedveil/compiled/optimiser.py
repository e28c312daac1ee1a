"""The optimiser steps: SGD, Adam, AdamW and Adagrad, as in torch."""

from __future__ import annotations

import math

import numpy as np

from fedveil.base.array_types import Float32s, Float64s
from fedveil.base.kernels import compiled

(SGD, ADAM, ADAMW, ADAGRAD) = range(4)
#: The numbers of a plan, in this order.
(LR, MOMENTUM, WEIGHT_DECAY, PROXIMAL, GRADIENT_NORM) = range(5)
_BETA_1, _BETA_2, _EPS, _ADAGRAD_EPS, _NORM_EPS = 0.9, 0.999, 1e-8, 1e-10, 1e-6


@compiled()
def take_step(
    m: Float32s, size: int, start: Float32s, kind: int, plan: Float64s, step: int
) -> None:
    """Update the weights m[:size], and reset their gradient m[size : 2 * size] to zero.

    The optimiser's state follows the gradient in m. `start` holds the round's weights, `kind` is
    the optimiser, `plan` has its settings, and `step` counts from 1.
    """
    g = m[size : 2 * size]
    w, first, second = m[:size], m[2 * size : 3 * size], m[3 * size : 4 * size]
    decay = plan[WEIGHT_DECAY]
    if plan[PROXIMAL] > 0:
        for i in range(size):
            g[i] += plan[PROXIMAL] * (w[i] - start[i])
    if plan[GRADIENT_NORM] >= 0:
        total = 0.0
        for i in range(size):
            total += g[i] * g[i]
        factor = plan[GRADIENT_NORM] / (math.sqrt(total) + _NORM_EPS)
        if not factor > 1:
            for i in range(size):
                g[i] *= factor
    if kind == ADAMW:
        for i in range(size):
            w[i] -= plan[LR] * decay * w[i]
    elif decay != 0:
        for i in range(size):
            g[i] += decay * w[i]
    if kind == SGD:
        if plan[MOMENTUM] != 0:
            for i in range(size):
                first[i] = g[i] + (plan[MOMENTUM] * first[i] if step > 1 else 0.0)
                g[i] = first[i]
        for i in range(size):
            w[i] -= plan[LR] * g[i]
    elif kind == ADAGRAD:
        for i in range(size):
            first[i] += g[i] * g[i]
            w[i] -= plan[LR] * g[i] / (math.sqrt(first[i]) + _ADAGRAD_EPS)
    else:
        short, root = plan[LR] / (1 - _BETA_1**step), math.sqrt(1 - _BETA_2**step)
        for i in range(size):
            first[i] += (1 - _BETA_1) * (g[i] - first[i])
            second[i] = _BETA_2 * second[i] + (1 - _BETA_2) * g[i] * g[i]
            w[i] -= short * first[i] / (math.sqrt(second[i]) / root + _EPS)
    for i in range(size):
        g[i] = np.float32(0)

"""Calibrates probabilities: of all predictions with probability 0.2, a fifth should be right.

Calibration multiplies all scores by one factor, and adds a constant to each class's scores. These
numbers are fitted to labels by maximum likelihood (Guo et al., On Calibration of Modern Neural
Networks, 2017), with a weak prior towards no change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_softmax

from fedveil.base.array_types import Array, Float64s, Int64s

#: Scores of a larger magnitude are clipped to this one: e^-2000 is 0. A model may mask a class with
#: minus infinity, whose product with 0 is NaN.
_LARGEST = 1000.0


def usable(outputs: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of `outputs` that contain no NaN or infinity."""
    return np.asarray(np.isfinite(outputs).all(axis=tuple(range(1, outputs.ndim))), np.bool_)


def calibrated(outputs: Array, labels: Array) -> Float64s:
    """Turn `outputs`, which are logits, into calibrated probabilities [examples, classes].

    Each half of the examples is calibrated on the labels of the other half, so no example is
    calibrated on its own label.
    """
    found = np.empty(outputs.shape)
    halves = slice(0, None, 2), slice(1, None, 2)
    for told, fitted in (halves, halves[::-1]):
        found[told] = apply(outputs[told], *fit(outputs[fitted], labels[fitted]))
    return found


def fit(outputs: Array, labels: Array) -> tuple[float, Float64s]:
    """Return the factor and each class's shift that best calibrate the logits `outputs`.

    The calibrated scores are factor * logits + shifts. They are fitted to `labels`.
    """
    scores = np.clip(outputs.astype(np.float64), -_LARGEST, _LARGEST)
    return _fit(scores, labels.reshape(-1).astype(np.int64))


def apply(outputs: Array, factor: float, shifts: Float64s) -> Float64s:
    """Turn `outputs`, which are logits, into probabilities, with a factor and shifts from `fit`."""
    scores = np.clip(outputs.astype(np.float64), -_LARGEST, _LARGEST)
    probabilities: Float64s = np.exp(log_softmax(factor * scores + shifts, axis=1))
    return probabilities


def log_loss(probabilities: Float64s, labels: Array) -> float:
    told = np.take_along_axis(probabilities, labels.reshape(-1, 1).astype(np.int64), axis=1)
    return float(-np.log(np.maximum(told, np.finfo(float).tiny)).mean())


def _fit(scores: Float64s, labels: Int64s) -> tuple[float, Float64s]:
    of_class = np.ascontiguousarray(scores.T)  # long rows are summed much faster than short ones
    own = labels, np.arange(len(labels))

    def cost(at: Float64s) -> tuple[float, Float64s]:
        factor = np.exp(at[0])
        logits = factor * of_class + at[1:, np.newaxis]
        logits -= logits.max(axis=0)
        excess = np.exp(logits)
        total = excess.sum(axis=0)
        loss = np.log(total).sum() - logits[own].sum()
        excess /= total
        excess[own] -= 1
        slope = np.array([factor * (excess * of_class).sum(), *excess.sum(axis=1)])
        return float(at @ at / 2 + loss), slope + at

    start = np.zeros(1 + len(of_class))
    bounds = [(-10, 10), *[(None, None)] * len(of_class)]
    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(np.exp(found[0])), found[1:]

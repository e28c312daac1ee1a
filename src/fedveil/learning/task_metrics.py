"""Metrics of a model's outputs for held-out examples, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from fedveil.base.array_types import Array, Bools, Float64s, Int64s

#: The direction in which a metric improves.
Better = Literal["higher", "lower"]
#: Returns a number, or a list with one for each class.
Metric = Callable[[Array, Array], Any]


def accuracy(scores: Float64s, y: Int64s) -> float:
    return float((scores.argmax(1) == y).mean())


def balanced_accuracy(scores: Float64s, y: Int64s) -> float:
    """Return the accuracy averaged over the classes in `y`. `scores` is [examples, classes]."""
    right = scores.argmax(1) == y
    return float(np.mean([right[y == label].mean() for label in np.unique(y)]))


def confusion(scores: Float64s, y: Int64s) -> list[list[int]]:
    """Return the confusion matrix: a row per true class, a column per predicted class.

    `scores` is [examples, classes], and `y` the true classes.
    """
    classes = scores.shape[1]
    counted = np.bincount(y * classes + scores.argmax(1), minlength=classes**2)
    found: list[list[int]] = counted.reshape(classes, classes).tolist()
    return found


def f1_per_class(scores: Float64s, y: Int64s) -> list[float]:
    """Return each class's F1: 2 * correct / (examples of the class + predictions of the class).

    `scores` is [examples, classes], and `y` the true classes.
    """
    table = np.array(confusion(scores, y))
    both = table.sum(0) + table.sum(1)
    return [2 * int(table[i, i]) / int(n) if n else math.nan for i, n in enumerate(both)]


def f1(scores: Float64s, y: Int64s) -> float:
    """Return the mean F1 over the classes that occur or are predicted.

    `scores` is [examples, classes], and `y` the true classes.
    """
    each = f1_per_class(scores, y)
    return float(np.nanmean(each))


def macro_auc(scores: Float64s, y: Int64s) -> float:
    """Return the area under the ROC curve of each class against the rest, averaged over classes.

    `scores` is [examples, classes], and `y` the true classes. A tie counts as 1/2. Classes that
    have no example or all examples are ignored. Returns NaN if no class remains or a score is NaN.
    """
    if np.isnan(scores).any():
        return math.nan
    return _mean(area(scores[:, label], y == label) for label in np.unique(y))


def area(scores: Float64s, inside: Bools) -> float | None:
    """Return the AUC of `scores`, with the examples in the mask `inside` as the positive ones.

    Returns None if the mask has all examples or none.
    """
    positives, negatives = int(inside.sum()), int((~inside).sum())
    if not positives or not negatives:
        return None
    ranks = _ranks(scores)[inside].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


def ks(scores: Float64s, y: Int64s) -> float:
    """Return the Kolmogorov-Smirnov distance, averaged over classes.

    `scores` is [examples, classes], and `y` the true classes. For one class, the distance is the
    largest difference between two distribution functions of the class's score: over its own
    examples, and over all others. Classes that have no example or all examples are ignored.
    """
    if np.isnan(scores).any():
        return math.nan
    return _mean(_distance(scores[:, label], y == label) for label in np.unique(y))


def _distance(scores: Float64s, inside: Bools) -> float | None:
    if inside.all() or not inside.any():
        return None
    order = np.argsort(scores)
    ranked = scores[order]
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(order) - 1)
    below = [np.cumsum(part[order])[ends] / part.sum() for part in (inside, ~inside)]
    return float(np.abs(below[0] - below[1]).max())


def _ranks(values: Float64s) -> Float64s:
    """Return the ranks of the values, from 1. Ties share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def _mean(figures: Any) -> float:
    known = [figure for figure in figures if figure is not None]
    return float(np.mean(known)) if known else math.nan


def rmse(outputs: Float64s, y: Float64s) -> float:
    return math.sqrt(np.square(outputs - y).mean())


def mae(outputs: Float64s, y: Float64s) -> float:
    return float(np.abs(outputs - y).mean())


def r2(outputs: Float64s, y: Float64s) -> float:
    """Return R² of `outputs`, averaged over the columns of the targets `y` that vary.

    Returns NaN if no column varies.
    """
    about = np.square(y - y.mean(0)).sum(0)
    left = np.square(outputs - y).sum(0)
    return _mean(1 - left[i] / about[i] if about[i] else None for i in range(len(about)))


def bit_accuracy(scores: Float64s, y: Float64s) -> float:
    return float(((scores > 0) == (y > 0.5)).mean())


def exact_match(scores: Float64s, y: Float64s) -> float:
    """Return the share of examples for which every yes-or-no label is predicted correctly.

    `scores` and the true labels `y` are [examples, labels]. A score above 0 means yes.
    """
    return float(((scores > 0) == (y > 0.5)).all(1).mean())


def bit_f1(scores: Float64s, y: Float64s) -> float:
    """Return the F1 of each yes-or-no label, averaged over labels that occur or are predicted.

    `scores` and the true labels `y` are [examples, labels]. A score above 0 means yes.
    """
    given, true = scores > 0, y > 0.5
    both = given.sum(0) + true.sum(0)
    return _mean(2 * h / n if n else None for h, n in zip((given & true).sum(0), both, strict=True))


def bit_auc(scores: Float64s, y: Float64s) -> float:
    """Return the AUC averaged over the labels that are yes for some examples and no for others.

    `scores` and the true labels `y` are [examples, labels].
    """
    if np.isnan(scores).any():
        return math.nan
    return _mean(area(scores[:, i], y[:, i] > 0.5) for i in range(y.shape[1]))


CLASSES: Mapping[str, Metric] = {
    "accuracy": accuracy,
    "auc": macro_auc,
    "ks": ks,
    "balanced_accuracy": balanced_accuracy,
    "f1": f1,
    "f1_per_class": f1_per_class,
    "confusion": confusion,
}
NUMBERS: Mapping[str, Metric] = {"rmse": rmse, "mae": mae, "r2": r2}
BITS: Mapping[str, Metric] = {
    "accuracy": bit_accuracy,
    "exact_match": exact_match,
    "f1": bit_f1,
    "auc": bit_auc,
}
#: Metrics for which lower is better.
LOWER = ("loss", "rmse", "mae", "perplexity")


#: The least and the largest value of each built-in metric.
RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(
        ("accuracy", "auc", "ks", "balanced_accuracy", "f1", "exact_match"), (0.0, 1.0)
    ),
    "r2": (-math.inf, 1.0),
    "perplexity": (1.0, math.inf),
    **dict.fromkeys(("loss", "rmse", "mae"), (0.0, math.inf)),
}


def better(name: str) -> Better:
    """Return "higher" or "lower": the direction in which the built-in metric `name` improves."""
    return "lower" if name in LOWER else "higher"

"""Metrics, with confidence intervals, for how well scores distinguish members from non-members.

A larger score means that an example is likelier a member. Every metric also states the value that
guessing reaches.
"""

from __future__ import annotations

import math

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.privacy.finding import CONFIDENCE, Measured
from fedveil.privacy.intervals import area as area
from fedveil.privacy.intervals import share

#: Low false-positive rates, which show if an attack names a few people with certainty.
LOW_RATES = (0.01, 0.001)


def figures(name: str, members: Float64s, others: Float64s, threshold: float) -> list[Measured]:
    """Return balanced accuracy, AUC, and true-positive rates at low false-positive rates.

    `members` and `others` are the scores of members and of non-members. The metrics' names begin
    with `name`. The balanced accuracy is at `threshold`. It is unbiased only if the threshold was
    not chosen on these scores.
    """
    low = [true_positives(f"{name} TPR at {r:.1%} FPR", members, others, r) for r in LOW_RATES]
    return [
        balanced_accuracy(f"{name} balanced accuracy", members, others, threshold),
        area(f"{name} AUC", members, others),
        *low,
    ]


def balanced_accuracy(name: str, members: Float64s, others: Float64s, threshold: float) -> Measured:
    """Return the metric `name`: the mean of the true-positive and the true-negative rate.

    `members` and `others` are the scores of members and of non-members. A score above `threshold`
    counts as a member's. The interval has confidence 0.95. It combines an interval for each rate
    with confidence sqrt(0.95).
    """
    each = math.sqrt(CONFIDENCE)
    caught = share("caught", int((members > threshold).sum()), len(members), confidence=each)
    spared = share("spared", int((others <= threshold).sum()), len(others), confidence=each)
    value, low, high = (
        (getattr(caught, part) + getattr(spared, part)) / 2 for part in ("value", "low", "high")
    )
    return Measured(name, value, low, high, 0.5, len(members) + len(others))


def best_threshold(members: Float64s, others: Float64s) -> float:
    """Return the threshold with the largest balanced accuracy.

    `members` and `others` are the scores of members and of non-members. An example with a score
    above the threshold is called a member. The threshold may be infinite.
    """
    values = np.unique(np.concatenate([members, others]))
    above = [len(s) - np.searchsorted(np.sort(s), values, "right") for s in (members, others)]
    gain = above[0] / len(members) - above[1] / len(others)
    best = int(np.argmax(gain))
    if gain[best] <= 0:
        return math.inf
    return float(values[best] / 2 + values[best + 1] / 2)


def true_positives(name: str, members: Float64s, others: Float64s, rate: float) -> Measured:
    """Return the metric `name`: the true-positive rate at a false-positive rate up to `rate`.

    `members` are the scores of members, and `others` the n scores of non-members. The threshold is
    the k-th highest of `others`, k = floor(rate (n + 1)). A non-member's score exceeds it with
    probability at most k / (n + 1), which is at most `rate`. The interval is exact for that
    threshold. If n is below 1 / rate - 1, there is no such threshold, and nothing is measured.
    """
    k = math.floor(rate * (len(others) + 1) + 1e-9)
    if k == 0:
        needed = math.ceil(1 / rate - 1e-6) - 1
        why = f"needs {needed:,} others, and there are {len(others):,}"
        return Measured(name, math.nan, guess=rate, cases=len(members), unmeasured=why)
    threshold = np.sort(others)[-k]
    return share(name, int((members > threshold).sum()), len(members), guess=rate)

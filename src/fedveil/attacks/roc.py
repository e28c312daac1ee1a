"""Metrics, with confidence intervals, for how well scores distinguish members from non-members.

A larger score means that an example is likelier a member. Every metric also states the value that
guessing reaches.
"""

from __future__ import annotations

import math

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.base.lazy import special
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
    probability at most k / (n + 1), which is at most `rate`. If n is below 1 / rate - 1, there is
    no such threshold, and nothing is measured.

    The true false-positive rate f of a threshold is not known, because the threshold is one of the
    n scores. The interval allows for this. It has confidence 0.95 for the true-positive rate at
    which f is exactly `rate`. Its lower end is above `rate` only if members exceed the threshold
    more often than others do: if the scores say nothing, with probability at most 2.5%. The lower
    end assumes that an attacker who ignores a fraction of its hits at random gains nothing: that
    the ROC curve is concave.
    """
    n = len(others)
    k = math.floor(rate * (n + 1) + 1e-9)
    if k == 0:
        needed = math.ceil(1 / rate - 1e-6) - 1
        why = f"needs {needed:,} others, and there are {n:,}"
        return Measured(name, math.nan, guess=rate, cases=len(members), unmeasured=why)
    # The rate f of the k-th highest of n scores has the distribution Beta(k, n - k + 1). Four
    # bounds are each wrong with probability at most 1/4 of the error: f and the share of members,
    # at a threshold for the lower and at one for the upper end.
    inverse, error = special().betaincinv, (1 - CONFIDENCE) / 4
    ordered, each = np.sort(others), 1 - 2 * error
    found = share(name, int((members > ordered[-k]).sum()), len(members), confidence=each)
    low = found.low * min(1.0, rate / float(inverse(k, n - k + 1, 1 - error)))
    ranks = np.arange(k, n + 1)
    surely = ranks[inverse(ranks, n - ranks + 1, error) >= rate]
    high = 1.0
    if len(surely):
        caught = int((members >= ordered[-surely[0]]).sum())
        high = share(name, caught, len(members), confidence=each).high
    return Measured(name, found.value, low, high, rate, len(members))

"""Shadow models teach an attack model what members' answers look like.

Source: Shokri et al. 2017, "Membership inference attacks against machine learning models": one
attack model for each class, here a logistic regression on the answer's largest log-probabilities,
the true class's, and its margin.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

from fedveil._arrays import Bools, Float64s
from fedveil.attacks.membership.model_answers import Answers
from fedveil.attacks.membership.references import References

#: A class with fewer answers than this of members, or of others, is judged by what all teach.
_FEW = 20
#: A log-probability below this is as good as any below it.
_LEAST = -30.0


def shadow_attack(answers: Answers, references: References) -> Float64s:
    """The log-odds that the attack model of each example's class gives to "member".

    Positive where it says so: 0 is its own threshold.
    """
    shadow = np.concatenate([given.columns for given in references.answers])
    labels = np.tile(references.y, len(references.answers))
    scale = _Scale(shadow)
    held = references.held.reshape(-1)
    taught, asked = scale(shadow), scale(answers.columns)
    whole = _fit(taught, held)
    scores: Float64s = whole.decision_function(asked)
    for label in np.unique(references.y):
        mine = labels == label
        if min(held[mine].sum(), (~held[mine]).sum()) >= _FEW:
            own = _fit(taught[mine], held[mine])
            scores[references.y == label] = own.decision_function(asked[references.y == label])
    return scores


class _Scale:
    """Columns at mean 0 and deviation 1 on what an attack model is taught by."""

    def __init__(self, columns: Float64s) -> None:
        bounded = np.maximum(columns, _LEAST)
        self._mean, self._deviation = bounded.mean(axis=0), bounded.std(axis=0)

    def __call__(self, columns: Float64s) -> Float64s:
        bounded: Float64s = np.maximum(columns, _LEAST) - self._mean
        known = self._deviation > 0
        scaled: Float64s = np.divide(bounded, self._deviation, np.zeros_like(bounded), where=known)
        return scaled


def _fit(columns: Float64s, held: Bools) -> LogisticRegression:
    return LogisticRegression(class_weight="balanced", max_iter=1000).fit(columns, held)

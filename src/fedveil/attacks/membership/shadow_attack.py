"""Shadow models: reference models on whose outputs the attacker trains a classifier of members.

Source: Shokri et al. 2017, "Membership inference attacks against machine learning models".
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

from fedveil.attacks.membership.model_answers import Answers
from fedveil.attacks.membership.references import References
from fedveil.base.array_types import Bools, Float64s

#: A class with fewer outputs for members, or for non-members, uses the classifier of all classes.
_FEW = 20
#: Smaller log-probabilities are raised to this one, as they add no information.
_LEAST = -30.0


def shadow_attack(answers: Answers, references: References) -> Float64s:
    """Return each example's log-odds of membership, from the attacked model's `answers`.

    The classifiers are trained on the outputs of the reference models. Each class has its own
    classifier. A class with few outputs uses one that is trained on the outputs of all classes.
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

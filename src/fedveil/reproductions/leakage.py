"""The leakage rate of 002: how often a membership attack on a run's model is right."""

from __future__ import annotations

from pathlib import Path

from fedveil.attacks.membership.model_answers import answers
from fedveil.attacks.roc import balanced_accuracy, best_threshold
from fedveil.attacks.target import Target
from fedveil.privacy.finding import Measured

#: At most so many examples of each kind are asked about.
_MOST = 10_000


def leakage(folder: Path) -> Measured:
    """Balanced accuracy of the loss threshold: the attacker guesses at examples one by one.

    Members are the training examples, others the test examples. The attacker knows of every
    second one which it is and takes the best threshold there; it is measured on the rest.
    """
    target = Target.of_run(folder)
    members, others = (
        answers(target.model, part.x[:_MOST], part.y[:_MOST]).truth
        for part in (target.dataset.train, target.dataset.test)
    )
    threshold = best_threshold(members[::2], others[::2])
    return balanced_accuracy("leakage", members[1::2], others[1::2], threshold)

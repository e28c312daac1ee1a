"""The leakage rate of source 002: the accuracy of a membership attack on a run's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from experiments.evidence import LEAST_SEEDS, interval
from fedveil.attacks.membership.model_answers import answers
from fedveil.attacks.roc import balanced_accuracy, best_threshold
from fedveil.attacks.target import Target
from fedveil.privacy.finding import Measured

#: The most members that are attacked, and the most other examples.
_MOST = 10_000


def leakage(folder: Path) -> Measured:
    """Return the balanced accuracy of a membership attack on the model of the run in `folder`.

    Members are the training examples, others the test examples. The attacker calls an example a
    member if the model's loss on it is below a threshold. The threshold is the best one for every
    second example, whose membership the attacker knows. The accuracy is that on all other examples.
    """
    target = Target.of_run(folder)
    members, others = (
        answers(target.model, part.x[:_MOST], part.y[:_MOST]).truth
        for part in (target.dataset.train, target.dataset.test)
    )
    threshold = best_threshold(members[::2], others[::2])
    return balanced_accuracy("leakage", members[1::2], others[1::2], threshold)


def over_seeds(rates: Sequence[Measured]) -> Measured:
    """Return the mean of the leakage rates of several seeds' models, with Student's interval.

    The rate of a single model keeps its own interval, that over the attacked examples.
    """
    if len(rates) < LEAST_SEEDS:
        return rates[0]
    values = [rate.value for rate in rates]
    low, high = interval(values)
    return replace(rates[0], value=mean(values), low=low, high=high)

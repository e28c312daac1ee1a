"""Scores of a model's answer to an example. A member of the training data has a high score."""

from __future__ import annotations

from fedveil.attacks.membership.model_answers import Answers
from fedveil.attacks.membership.references import References
from fedveil.base.array_types import Float64s


def loss(answers: Answers, references: References) -> Float64s:
    """Return minus each example's loss. The references serve only to choose a threshold.

    Source: Yeom et al. 2018: a small loss reveals a member.
    """
    return answers.truth


def calibrated_loss(answers: Answers, references: References) -> Float64s:
    """Return how far each example's loss is below its mean under models trained without it.

    Source: Watson et al. 2022, "On the importance of difficulty calibration in membership inference
    attacks": a small loss reveals a member if it is small for the example's difficulty.
    """
    return answers.truth - references.outside(lambda given: given.truth)[0]


def lira(answers: Answers, references: References) -> Float64s:
    """Return the excess of each example's margin over that of models trained without it.

    Source: Carlini et al. 2022, "Membership inference attacks from first principles", section VI
    (offline LiRA): the margin ln(p / (1 - p)) of the true class is nearly normal over models
    trained without the example.

    The unit is the standard deviation of these models' margins. This is the one-sided test of "not
    a member": its score orders examples as 1 - Pr[Z > z] does. One standard deviation serves all
    examples, as the source advises for few references.
    """
    mean, deviation = references.outside(lambda given: given.margin)
    return (answers.margin - mean) / deviation

"""A small loss betrays a member (Yeom et al. 2018), smaller than the example's difficulty says.

Source: Watson et al. 2022, "On the importance of difficulty calibration in membership inference
attacks": the score under the attacked model less its mean under models that never saw the example.
"""

from __future__ import annotations

from fedveil._arrays import Float64s
from fedveil.attacks.membership.model_answers import Answers
from fedveil.attacks.membership.references import References


def loss(answers: Answers, references: References) -> Float64s:
    """Minus the loss; the references serve for the threshold alone."""
    return answers.truth


def calibrated_loss(answers: Answers, references: References) -> Float64s:
    """By how much the loss is smaller than its mean under the references outside."""
    return answers.truth - references.outside(lambda given: given.truth)[0]

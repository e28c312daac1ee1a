"""A small loss reveals a member (Yeom et al. 2018), if it is small for the example's difficulty.

Source: Watson et al. 2022, "On the importance of difficulty calibration in membership inference
attacks": the score under the attacked model less its mean under models that never saw the example.
"""

from __future__ import annotations

from fedveil.attacks.membership.model_answers import Answers
from fedveil.attacks.membership.references import References
from fedveil.base.array_types import Float64s


def loss(answers: Answers, references: References) -> Float64s:
    """Return minus each example's loss. The references serve only to choose a threshold."""
    return answers.truth


def calibrated_loss(answers: Answers, references: References) -> Float64s:
    """Return how far each example's loss is below its mean under models trained without it."""
    return answers.truth - references.outside(lambda given: given.truth)[0]

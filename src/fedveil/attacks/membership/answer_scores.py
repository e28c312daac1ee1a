"""Membership scores from a model's output for an example. Members have high scores.

If the example is a text, its loss is the mean loss over its tokens. The probability of the true
class is exp(-loss) then: the geometric mean of the tokens' probabilities (`model_answers`).
"""

from __future__ import annotations

import math

import numpy as np

from fedveil.attacks.membership.model_answers import Answers
from fedveil.attacks.membership.references import References
from fedveil.base.array_types import Float64s


def loss(answers: Answers, references: References) -> Float64s:
    """Return minus each example's loss: a small loss reveals a member (Yeom et al. 2018).

    `answers` are the attacked model's outputs for the examples. `references` is not used.
    """
    return answers.truth


def calibrated_loss(answers: Answers, references: References) -> Float64s:
    """Return how far each example's loss is below its mean loss in models trained without it.

    Source: Watson et al. 2022, "On the importance of difficulty calibration in membership inference
    attacks". A loss reveals a member if it is small relative to the example's difficulty. `answers`
    are the attacked model's outputs. The models trained without an example are among `references`.
    """
    return answers.truth - references.outside(lambda given: given.truth)[0]


def lira(answers: Answers, references: References) -> Float64s:
    """Return how far each example's margin exceeds its mean margin in models trained without it.

    Source: Carlini et al. 2022, "Membership inference attacks from first principles", section VI
    (offline LiRA). The margin, ln(p / (1 - p)) of the true class, is nearly normal over models
    trained without the example. These models are among `references`, and `answers` are the attacked
    model's outputs. The score's unit is the standard deviation of the margins, one number for all
    examples.
    """
    mean, deviation = references.outside(lambda given: given.margin)
    return (answers.margin - mean) / deviation


def online_lira(answers: Answers, references: References) -> Float64s:
    """Return the log-likelihood ratio of each example's margin: member against non-member.

    Source: Carlini et al. 2022, algorithm 1 (online LiRA). The margin is ln(p / (1 - p)) of the
    true class. It is assumed to have one normal distribution over models trained with the example,
    and another over models trained without it. Both are estimated from `references`. Unlike in the
    source, an example's standard deviations are shrunk towards those of all examples. `answers` are
    the attacked model's outputs.
    """
    member, other = (
        _log_density(answers.margin, *references.normals(lambda given: given.margin, member))
        for member in (True, False)
    )
    return member - other


def _log_density(values: Float64s, means: Float64s, deviations: Float64s) -> Float64s:
    return -(((values - means) / deviations) ** 2) / 2 - np.log(deviations)


def rmia(answers: Answers, references: References, gamma: float = 2.0) -> Float64s:
    """Return the share of other examples that each example beats, by relative probability.

    Source: Zarifzadeh et al. 2024, "Low-cost high-power membership inference attacks" (online
    RMIA). The relative probability is p(true class) under the attacked model, divided by its mean
    under the reference models. An example beats another if the first's relative probability is at
    least `gamma` times as large as the second's. `gamma` is at least 1. `answers` are the attacked
    model's outputs.
    """
    sides = [references.normals(lambda given: np.exp(given.truth), member)[0]
             for member in (True, False)]  # fmt: skip
    usual = np.maximum(sum(sides) / 2, np.finfo(np.float64).tiny)
    relative = answers.truth - np.log(usual)
    beaten = np.searchsorted(np.sort(relative), relative - math.log(gamma), side="right")
    itself = gamma == 1  # then each example counts as beaten by itself
    return (beaten - itself) / max(len(relative) - 1, 1)


def rmia_of_texts(answers: Answers, references: References) -> Float64s:
    """Return the score of `rmia` with a `gamma` of 1.

    A text's relative probability is averaged over its tokens, so two texts seldom differ by the
    factor 2 that `rmia` uses for classes.
    """
    return rmia(answers, references, gamma=1.0)

"""The likelihood-ratio attack without models that hold the example (offline LiRA).

Source: Carlini et al. 2022, "Membership inference attacks from first principles", section VI: the
margin ln(p / (1 - p)) of the true class is nearly normal over models trained without the example.
"""

from __future__ import annotations

from fedveil.attacks.membership.model_answers import Answers
from fedveil.attacks.membership.references import References
from fedveil.base.array_types import Float64s


def lira(answers: Answers, references: References) -> Float64s:
    """Return the excess of each example's margin over that of models trained without it.

    The unit is the standard deviation of these models' margins. This is the one-sided test of "not
    a member": its score orders examples as 1 - Pr[Z > z] does. One standard deviation serves all
    examples, as the source advises for few references.
    """
    mean, deviation = references.outside(lambda given: given.margin)
    return (answers.margin - mean) / deviation

"""The information that one report of SignDS gives about the sign of one weight's change."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedveil.errors import InvalidValue
from fedveil.mechanisms.signds.dimension_selection import SelectionPlan


class SignTold(NamedTuple):
    """The information that one report of SignDS gives about the sign of one weight's change.

    `selected` and `passed` are probabilities that the change has the report's sign: `selected` if
    the report selects the weight, `passed` if it does not. `log_ratio` is the larger of the two log
    likelihood ratios between the signs: that of a report that selects the weight, and that of one
    that does not. These three are for an attacker who knows nothing about the other weights.
    `worst` is the largest log likelihood ratio for an attacker who knows the changes of all other
    weights.
    """

    selected: float
    passed: float
    log_ratio: float
    worst: float


def sign_told(plan: SelectionPlan, dim: int, eps: float) -> SignTold:
    """Return the information that a report of `SignDS` gives about the sign of one weight's change.

    `SignDS` selects from `dim` weights by `plan`, with epsilon `eps`. The result holds under three
    assumptions:

        1. The changes of all weights are exchangeable and not 0.
        2. Before the report, a change of any size is equally likely to have either sign.
        3. At least `plan.topk` changes have the report's sign. All changes in the
           top-k set then have it.

    Raises `InvalidValue` if the top-k set has more than half of the weights.
    """
    # Let v of the h selected dimensions be in the top-k set, d = `dim`, R = E[v] / h and t = topk.
    # A weight outside the set is selected with probability o = (h - E[v]) / (d - t). Then
    #
    #     Pr[selected | the report's sign]  = 2 E[v] / d + (1 - 2 t / d) o
    #     Pr[selected | the other sign]     = o
    #     Pr[the report's sign | selected]  = R + (1 - R) (d / 2 - t) / (d - t)
    #
    # An attacker who knows all other changes may know that this weight decides whether the
    # threshold is reached. The ratio is then the full e^eps.
    topk, size, ratio = plan.topk, plan.dim_out, plan.expected_ratio
    if 2 * topk > dim:
        raise InvalidValue(
            f"the top-k set has {topk} of {dim} dimensions, half of them at most are needed: it "
            f"would hold changes of both signs"
        )
    outside = (dim / 2 - topk) / (dim - topk)
    selected = ratio + (1 - ratio) * outside
    other = size * (1 - ratio) / (dim - topk)
    own = 2 * size * ratio / dim + (1 - 2 * topk / dim) * other
    passed = (1 - own) / (2 - own - other)
    named = math.log(own / other) if other else math.inf
    unnamed = math.log((1 - other) / (1 - own)) if own < 1 else math.inf
    # Near a ratio of 1, rounding would make the logarithms too large.
    return SignTold(selected, passed, min(max(named, unnamed), eps), eps)

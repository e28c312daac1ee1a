"""What one report of SignDS tells of the sign of one weight's change."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedveil.errors import InvalidValue
from fedveil.mechanisms.signds.dimension_selection import SelectionPlan


class SignTold(NamedTuple):
    """Of one weight, for who knows nothing of the others.

    `selected`: how likely its change has the report's sign, where the report selects it; `passed`:
    where it does not. `log_ratio`: the largest ln of a ratio of the two signs' likelihoods that
    a report gives; `worst` the same for who knows all other weights' changes.
    """

    selected: float
    passed: float
    log_ratio: float
    worst: float


def sign_told(plan: SelectionPlan, dim: int, eps: float) -> SignTold:
    """What a report of `SignDS` with this plan tells of a sign, from even odds.

    Assumed: changes are exchangeable, none is 0, either sign is as likely whatever the sizes, and
    the top-k set lies within the changes of the report's sign, as it does where these are at least
    topk: of d changes about half. Then with R = E[v] / h, t = topk and o = (h - E[v]) / (d - t),
    how often a weight outside of the set is selected,

        Pr[selected | the report's sign]  = 2 E[v] / d + (1 - 2 t / d) o
        Pr[selected | the other sign]     = o
        Pr[the report's sign | selected]  = R + (1 - R) (d / 2 - t) / (d - t)

    Who knows all other changes may know that the weight's own one decides whether the threshold is
    reached: the ratio is then the whole e^eps.
    """
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
    return SignTold(selected, passed, max(named, unnamed), eps)

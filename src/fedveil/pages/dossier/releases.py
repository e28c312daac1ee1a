"""A run's releases as plain data, from which their epsilons can be recomputed.

The field `law` of a release names the distribution of its privacy loss:

    none                no promise: epsilon is infinite
    stated              the worst distribution that an (epsilon, delta) guarantee allows
    gaussian            Gaussian noise of `ratio` times the sensitivity (one unit replaced)
    sampled gaussian    noise of `multiplier` times the clipping norm, on a sum that includes each
                        member with probability `rate`
    table               a list of the possible losses, on a grid, with their probabilities. Readers
                        can check how they compose, but not if they are the mechanism's losses
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fedveil.privacy.compose import Charge
from fedveil.privacy.loss import Gaussian
from fedveil.privacy.loss_distribution import LossDistribution
from fedveil.privacy.sampled_gaussian import SampledGaussian

#: The range in which a sampled Gaussian's noise is searched, divided by twice the clipping norm.
_LEAST_RATIO, _MOST_RATIO = 0.05, 1e3
_HALVINGS = 60
#: The largest relative difference between a table and that of a sampled Gaussian.
_SAME = 1e-4


def releases_of(
    charges: Iterable[Charge], rates: Sequence[float], *, adaptive: bool
) -> list[dict[str, Any]]:
    """Convert charges (privacy losses, each with a number of releases) to plain data.

    The field `law` of each result names the distribution of the loss. It is explained at the top of
    this module. `rates` are the job's sampling rates. A loss distribution that equals that of
    Gaussian noise at one of them gets the law "sampled gaussian", any other distribution the law
    "table".

    If `adaptive` is True, the account that states these releases adds up their epsilons, and needs
    no distributions. So every law is "stated" (epsilon and delta are all that is given), or "none"
    if epsilon is infinite.
    """
    found = []
    for loss, count in charges:
        told = {"per": loss.per, "count": count, "epsilon": loss.epsilon, "delta": loss.delta}
        release = None if adaptive else loss.release
        if release is None:
            found.append({**told, "law": "none" if math.isinf(loss.epsilon) else "stated"})
        elif isinstance(release, Gaussian):
            found.append({**told, "law": "gaussian", "ratio": release.ratio})
        else:
            found.append({**told, **_law_of(release.distribution(), rates)})
    return found


def _law_of(table: LossDistribution, rates: Sequence[float]) -> dict[str, Any]:
    for rate in rates:
        ratio = _sampled_ratio(table, rate)
        if ratio is not None:
            return {"law": "sampled gaussian", "multiplier": 2 * ratio, "rate": rate}
    return {
        "law": "table",
        "step": table.step,
        "low": table.low,
        "infinite": table.infinite,
        "masses": table.masses.tolist(),
    }


def _sampled_ratio(table: LossDistribution, rate: float) -> float | None:
    """Return the `ratio` for which `SampledGaussian(ratio, rate)` has the losses in `table`.

    Returns None if there is no such ratio.
    """
    if not 0 < rate < 1:
        return None
    low, high = math.log(_LEAST_RATIO), math.log(_MOST_RATIO)
    wanted = table.delta(0.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if SampledGaussian(math.exp(middle), rate).delta(0.0) > wanted:
            low = middle
        else:
            high = middle
    ratio = math.exp((low + high) / 2)
    known = SampledGaussian(ratio, rate)
    twin = known.distribution()
    places = [share * table.largest for share in (0.01, 0.05, 0.2, 0.5)]
    same = all(
        math.isclose(table.delta(x), twin.delta(x), rel_tol=_SAME, abs_tol=1e-12) for x in places
    )
    return ratio if same else None

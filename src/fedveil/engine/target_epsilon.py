"""Finds the value of a protection's parameter at which a whole run costs a target epsilon."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedveil.base.validate import positive
from fedveil.errors import InvalidValue
from fedveil.federated.job import Job
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import projected
from fedveil.privacy.loss import exactly
from fedveil.protections.base import Protection
from fedveil.protections.cost_key import CostKey

#: Limits of the search, and the significant digits of its result.
_LEAST, _MOST = 1e-9, 1e9
_DIGITS = 4
#: The search ends when the relative distance between the ends of its interval is below this.
_NEAR = 10.0 ** (-_DIGITS - 1)
#: The results of this process's searches. The runs of a comparison or a sweep share them.
_found: dict[tuple[Any, ...], float | None] = {}


class Solved(NamedTuple):
    """The result of `solve`: the job's keys to set, and the protection with these settings.

    The last key in `keys` is the parameter whose value was sought.
    """

    keys: dict[str, Any]
    protection: Protection

    @property
    def value(self) -> float:
        return float(list(self.keys.values())[-1])

    def __str__(self) -> str:
        shown = ((key, "null" if value is None else value) for key, value in self.keys.items())
        return " ".join(f"--set {key}={value}" for key, value in shown)


def whole_run(protection: Protection, rounds: int, delta: float) -> Figure:
    """Return the predicted epsilon at `delta` of a client that takes part in every round."""
    spending = protection.spending(protection.initial_state())
    return projected(spending, rounds, adaptive=protection.adaptive).figure_every_round(delta)


def key_of_cost(protection: Protection) -> str | None:
    """Return the job's key of the parameter that decides what a report costs.

    Returns None if the protection has no such parameter.
    """
    key = protection.cost_key(protection.settings)
    return None if key is None else f"protection.{protection.block}.{key.parameter}"


def solve(job: Job, protection: Protection, target: float) -> Solved:
    """Find the value of a parameter at which a run's epsilon is at most, and closest to, `target`.

    The parameter is the one that decides the cost of a report, such as the noise. Its value has
    four significant digits. The run's epsilon is the ledger's forecast at the job's delta, for a
    client that takes part in every round. The result also sets equal weights of the clients if the
    noise needs them. In an adaptive run, whose rounds can differ in cost, it also sets `target` as
    the limit on the total cost. Raises `InvalidValue` if there is no such parameter or value.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about settings that nobody has chosen yet
        return _solve(job, protection, target)


def _solve(job: Job, protection: Protection, target: float) -> Solved:
    target = positive("target epsilon", target)
    key, place = protection.cost_key(protection.settings), key_of_cost(protection)
    if key is None:
        raise InvalidValue(_unsolvable(job, protection))
    total = {key.total: target} if protection.adaptive and key.total else {}
    if protection.adaptive and not total:
        raise InvalidValue(
            f"protection.name = {job.protection.name} is adaptive with these settings. Its rounds "
            f"may cost more than the first, and it names no setting that bounds the whole run"
        )
    protection = _changed(protection, protection.settings.model_dump(exclude_unset=True) | total)

    def spent(value: float) -> Figure:
        return whole_run(at_cost(protection, key, value), job.rounds, job.privacy.delta)

    def fits(value: float) -> tuple[bool, float]:
        epsilon = spent(value).epsilon
        return epsilon <= target, epsilon / target

    settings = protection.settings.model_dump(exclude_unset=True)
    context = replace(protection.context, job=b"", seed=0, roster={}, identity=None)
    about = (type(protection), repr(settings), repr(context))
    sought = (*about, job.rounds, job.privacy.delta, target)
    if sought not in _found:
        _found[sought] = _edge(fits, key, key.of(protection.settings.model_dump()))
    value = _found[sought]
    if value is None:
        least, shown = _MOST if key.falls else _LEAST, ""
        with suppress(InvalidValue, ValidationError):  # if the protection allows this value
            shown = f": at {least:g} it is {spent(least)}"
        raise InvalidValue(
            f"no {place} brings the run to epsilon {exactly(target)}{shown}. Use fewer rounds, "
            "another delta or other parameters"
        )
    found = at_cost(protection, key, value)
    changes = [*total.items(), *key.changes(settings, value)]
    keys = {f"protection.{protection.block}.{name}": v for name, v in changes}
    weighting, explicit = found.context.weighting, job.server.model_fields_set
    if "weighting" in explicit and job.server.weighting != weighting:
        keys = {"server.weighting": weighting, **keys}
    return Solved(keys, found)


def _unsolvable(job: Job, protection: Protection) -> str:
    name = job.protection.name
    if not protection.noised(protection.settings):
        return (
            f"protection.name = {name} promises no epsilon under any settings. Choose another "
            f"protection, for example with `--set protection=distributed_dp`"
        )
    return (
        f"protection.name = {name} does not declare which parameter decides the cost of a "
        f"report (`cost_parameter` of its class), so none can be solved for"
    )


def at_cost(protection: Protection, key: CostKey, value: float) -> Protection:
    """Return the protection with parameter `key` set to `value`.

    Raises an error if `value` is invalid.
    """
    held = protection.settings
    return _changed(protection, key.put(held.model_dump(exclude_unset=True), value))


def _changed(protection: Protection, settings: Mapping[str, Any]) -> Protection:
    changed, context = type(protection.settings)(**settings), protection.context
    if protection.noised(changed):
        context = replace(context, weighting="equal")
    return type(protection)(changed, context)


def _edge(fits: Callable[[float], tuple[bool, float]], key: CostKey, start: float) -> float | None:
    """Return the value of `key` whose epsilon is closest to the target, and not above it.

    Returns None if every value's epsilon is above the target. `fits(value)` returns two results:
    True if the value's epsilon is at most the target, and this epsilon divided by the target. The
    search begins at `start`.
    """

    def at(cost: float) -> float:
        return 1 / cost if key.falls else cost

    def checked(value: float) -> tuple[bool, float]:
        try:
            return fits(value)
        except (InvalidValue, ValidationError):
            return False, math.inf

    def tried(cost: float) -> tuple[bool, float]:
        return checked(at(cost))

    low = high = at(start)
    good, below = tried(low)
    above = below
    while low > _LEAST and not good:
        low, high, above = max(_LEAST, low / 4), low, below
        good, below = tried(low)
    if not good:
        return None
    while low == high and high < _MOST:
        high *= 4
        good, above = tried(high)
        if good:
            low, below = high, above
    width = math.inf
    while high > low * (1 + _NEAR):
        middle = _crossing(low, high, below, above)
        if high / low > math.sqrt(width):  # the estimate converges too slowly: bisect
            middle = math.sqrt(low * high)
        width = high / low
        good, ratio = tried(middle)
        if good:
            low, below = middle, ratio
        else:
            high, above = middle, ratio
    nearest = key.rounded(at(high), _DIGITS)
    # Not `tried(at(nearest))`: 1 / (1 / nearest) may be larger than `nearest`, and cost less.
    return nearest if checked(nearest)[0] else key.rounded(at(low), _DIGITS)


def _crossing(low: float, high: float, below: float, above: float) -> float:
    """Estimate the value between `low` and `high` at which epsilon equals the target.

    `below` and `above` are the epsilons at `low` and `high`, divided by the target.
    """
    if not 0 < below <= 1 < above < math.inf:
        return math.sqrt(low * high)
    share = math.log(below) / (math.log(below) - math.log(above))
    point = low * (high / low) ** share
    return float(min(max(point, low * (1 + _NEAR / 2)), high / (1 + _NEAR / 2)))

"""The parameter of a protection that brings a whole run to an epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, Context
from typing import NamedTuple

from pydantic import ValidationError

from fedveil._validate import positive
from fedveil.errors import InvalidValue
from fedveil.federated.job import Job
from fedveil.privacy.ledger import project
from fedveil.privacy.loss import as_written, format_epsilon
from fedveil.privacy.promise import Figure
from fedveil.protections.base import Protection

#: Where a search gives up, and the digits of what it finds.
_LEAST, _MOST = 1e-9, 1e9
_DIGITS = 4


class Solved(NamedTuple):
    """`key` of the job, the value for it, and the protection that has it."""

    key: str
    value: float
    protection: Protection


def whole_run(protection: Protection, rounds: int, delta: float) -> Figure:
    """What a client that is drawn in every round will have spent."""
    spending = protection.spending(protection.initial_state())
    figures = project(spending, rounds, delta, adaptive=protection.adaptive)
    figure = figures["run_every_round"]
    assert figure is not None  # only the most-drawn client is not known before
    return figure


def key_of_cost(protection: Protection) -> str | None:
    """The job's key of the parameter that decides what a report costs, where one does."""
    name = protection.cost_parameter
    return None if name is None else f"protection.{protection.block}.{name}"


def solve(job: Job, protection: Protection, target: float) -> Solved:
    """The largest value, to four digits, with which a run costs at most `target`.

    That is for a client that is drawn in every round, at the job's delta, by the ledger's own
    forecast. Everything else stays as the job has it.
    """
    target = positive("target epsilon", target)
    key = key_of_cost(protection)
    if key is None:
        raise InvalidValue(_unsolvable(job, protection))

    def spent(value: float) -> Figure:
        return whole_run(_with(protection, value), job.rounds, job.privacy.delta)

    def fits(value: float) -> bool:
        return spent(value).epsilon <= target

    value = _largest(fits, getattr(protection.settings, key.rpartition(".")[2]))
    if value is None:
        raise InvalidValue(
            f"no {key} brings the run to epsilon {format_epsilon(target)}: at {_LEAST:g} it is "
            f"{spent(_LEAST)}; fewer rounds, another delta or other parameters may"
        )
    return Solved(key, value, _with(protection, value))


def _unsolvable(job: Job, protection: Protection) -> str:
    name = job.protection.name
    if not protection.perturbs:
        return (
            f"protection.name = {name} promises no epsilon, so that there is nothing to solve "
            f"for: take one that perturbs reports, such as dp_encrypt"
        )
    return (
        f"protection.name = {name} does not say which of its parameters decides what a report "
        f"costs (`cost_parameter` of its class), so that none can be solved for"
    )


def _with(protection: Protection, value: float) -> Protection:
    """The same protection with another value of its parameter; a refused one is an error."""
    settings, name = protection.settings, protection.cost_parameter
    changed = {**settings.model_dump(exclude_unset=True), name: value}
    return type(protection)(type(settings)(**changed), protection.context)


def _largest(fits: Callable[[float], bool], start: float) -> float | None:
    """The largest value that fits, rounded down to a few digits; None where none does.

    What the parameter may not be, at its upper end, does not fit.
    """

    def good(value: float) -> bool:
        try:
            return fits(value)
        except (InvalidValue, ValidationError):
            return False

    low = high = start
    while low > _LEAST and not good(low):
        low, high = max(_LEAST, low / 4), low
    if low == _LEAST and not good(low):
        return None
    while low == high and high < _MOST:
        high *= 4
        if good(high):
            low = high
    while high > low * (1 + 10.0 ** (-_DIGITS - 1)):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if good(middle) else (low, middle)
    nearest = _rounded(high)
    return nearest if good(nearest) else _rounded(low)


def _rounded(value: float) -> float:
    return float(Context(prec=_DIGITS, rounding=ROUND_FLOOR).create_decimal(as_written(value)))

"""A protection's word on a job: what must hold, what is advised, and what to try next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias


@dataclass(frozen=True)
class Cohort:
    """The number of clients, and of those in a round. None: not known."""

    clients: int | None
    per_round: int | None


#: Checks a protection's settings against the cohort. Returns None, or a sentence that begins with
#: the setting that is wrong. The docstring is the rule in the reference of job keys.
Rule: TypeAlias = Callable[[Any, Cohort], str | None]


class Stronger(NamedTuple):
    """The protection to try after a run without any guarantee: its name, the advice, and why."""

    protection: str
    advice: str
    why: str

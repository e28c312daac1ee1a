"""Types with which a protection states its rules and advice about a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias


@dataclass(frozen=True)
class Cohort:
    """The number of clients in a job (`clients`) and in a round (`per_round`). None if unknown.

    `per_operator` is the largest number of clients that one organisation may run
    (`deployment.clients_per_node`).
    """

    clients: int | None
    per_round: int | None
    per_operator: int = 1


#: Checks a protection's settings against the cohort. Returns None, or a sentence that begins with
#: the setting that is wrong. The reference of job keys quotes the docstring's first paragraph.
Rule: TypeAlias = Callable[[Any, Cohort], str | None]


class Stronger(NamedTuple):
    """Advice after a run without any guarantee: which protection to try instead.

    `protection` is its name. `advice` says what to do, such as "add noise to the sum". `why` says
    how the protection does this, such as "with noise split among the clients".
    """

    protection: str
    advice: str
    why: str

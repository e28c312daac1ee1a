"""How hard an attack tries, and whom it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

#: As `privacy.finding.EFFORTS`: minutes on two cores, some of them; an hour; as long as it takes.
Effort: TypeAlias = Literal["quick", "standard", "full"]
T = TypeVar("T")


def by_effort(effort: Effort, quick: T, standard: T, full: T) -> T:
    """One of three."""
    return {"quick": quick, "standard": standard, "full": full}[effort]


@dataclass(frozen=True)
class Watch:
    """Whom an attack tells how far it is, and who keeps its pictures; by default nobody.

    `step(done, total, what)`; `picture(name, data)` gives the place where the file is kept.
    """

    step: Callable[[int, int, str], None] = lambda done, total, what: None
    picture: Callable[[str, bytes], str] = lambda name, data: name

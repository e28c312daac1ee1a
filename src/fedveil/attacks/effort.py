"""How hard an attack tries, and whom it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

#: As `privacy.finding.EFFORTS`: minutes on two cores, some of them; an hour; as long as it takes.
Effort: TypeAlias = Literal["quick", "standard", "full"]
T = TypeVar("T")


def by_effort(effort: Effort, quick: T, standard: T, full: T) -> T:
    """One of three."""
    return {"quick": quick, "standard": standard, "full": full}[effort]


@dataclass(frozen=True)
class Watch:
    """What an attack does beside finding: `step(done, total, what)`, and `keep(name, bytes)`.

    By default nobody looks, and nothing is kept.
    """

    step: Callable[[int, int, str], None] = lambda done, total, what: None
    keep: Callable[[str, bytes], None] = lambda name, data: None
    kept: list[str] = field(default_factory=list)

    def picture(self, name: str, data: bytes) -> str:
        """Keep a picture under its name."""
        self.keep(name, data)
        self.kept.append(name)
        return name

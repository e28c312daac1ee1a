"""The effort of an attack, and the callbacks that report its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

#: The values of `privacy.finding.EFFORTS`. On two cores, an attack takes some minutes at
#: "quick", about an hour at "standard", and possibly much longer at "full".
Effort: TypeAlias = Literal["quick", "standard", "full"]
T = TypeVar("T")


def by_effort(effort: Effort, quick: T, standard: T, full: T) -> T:
    """Return the value for this effort: `quick`, `standard` or `full`."""
    return {"quick": quick, "standard": standard, "full": full}[effort]


@dataclass(frozen=True)
class Watch:
    """Callbacks for an attack's progress and pictures. By default they do nothing.

    `step(done, total, what)` reports progress. `picture(name, data)` saves a picture, and returns
    the name of its file.

        >>> from fedveil.attacks.effort import Watch
        >>> watch = Watch(step=lambda done, total, what: print(f"{done} of {total}: {what}"))
        >>> watch.step(3, 8, "client 5")
        3 of 8: client 5
    """

    step: Callable[[int, int, str], None] = lambda done, total, what: None
    picture: Callable[[str, bytes], str] = lambda name, data: name

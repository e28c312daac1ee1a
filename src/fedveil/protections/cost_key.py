"""The parameter of a protection that decides what a report costs, and which way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from fedveil.privacy.loss import as_written


@dataclass(frozen=True)
class CostKey:
    """What `fedveil budget --target-epsilon` solves for.

    `parameter`: its place below the protection's block, dots between blocks. `falls`: a larger one
    costs less; else a smaller one does. `start`: where it is looked for while it is null.
    `instead`: the parameters that say the same in another way, and are null beside it. `total`: the
    parameter that ends an adaptive run before it has cost more than this; without it none is
    solved for, since later rounds cost what nobody knows before.
    """

    parameter: str
    falls: bool = False
    start: float = 1.0
    instead: tuple[str, ...] = ()
    total: str | None = None

    def of(self, settings: Mapping[str, Any]) -> float:
        """Its value, or where to start where there is none."""
        value: Any = settings
        for name in self.parameter.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return self.start if value is None else float(value)

    def changes(self, settings: Mapping[str, Any], value: float) -> Iterator[tuple[str, Any]]:
        """The parameters to set so that it is `value`, given what is set."""
        yield from ((name, None) for name in self.instead if settings.get(name) is not None)
        yield self.parameter, value

    def put(self, settings: Mapping[str, Any], value: float) -> dict[str, Any]:
        """The settings with these changes."""
        changed = dict(settings)
        for place, new in self.changes(settings, value):
            *blocks, last = place.split(".")
            held = changed
            for block in blocks:
                held[block] = dict(held.get(block) or {})
                held = held[block]
            held[last] = new
        return changed

    def rounded(self, value: float, digits: int) -> float:
        """`value` to so many digits, never to where it costs more."""
        way = ROUND_CEILING if self.falls else ROUND_FLOOR
        return float(Context(prec=digits, rounding=way).create_decimal(as_written(value)))

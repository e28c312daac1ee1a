"""The parameter of a protection that decides what a report costs, and its direction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from fedveil.privacy.loss import as_written


@dataclass(frozen=True)
class CostKey:
    """The parameter that `fedveil budget --target-epsilon` solves for.

    `parameter`: its path below the protection's block, with dots between blocks. `falls`: True if a
    larger value costs less, False if a smaller one does. `start`: where the search starts if the
    parameter is null. `instead`: parameters that set the same thing in another way and must be null
    beside it. `total`: the parameter that ends an adaptive run before it costs more than this
    value. Without `total`, an adaptive run has nothing to solve for, since the cost of later rounds
    is unknown in advance.
    """

    parameter: str
    falls: bool = False
    start: float = 1.0
    instead: tuple[str, ...] = ()
    total: str | None = None

    def of(self, settings: Mapping[str, Any]) -> float:
        """Return the parameter's value, or `start` if it is null."""
        value: Any = settings
        for name in self.parameter.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return self.start if value is None else float(value)

    def changes(self, settings: Mapping[str, Any], value: float) -> Iterator[tuple[str, Any]]:
        """Yield the parameters to set, given `settings`, so that the parameter becomes `value`."""
        yield from ((name, None) for name in self.instead if settings.get(name) is not None)
        yield self.parameter, value

    def put(self, settings: Mapping[str, Any], value: float) -> dict[str, Any]:
        """Return the settings with these changes."""
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
        """Return `value` rounded to `digits` digits, in the direction that does not cost more."""
        way = ROUND_CEILING if self.falls else ROUND_FLOOR
        return float(Context(prec=digits, rounding=way).create_decimal(as_written(value)))

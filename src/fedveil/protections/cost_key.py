"""The parameter of a protection that decides what a report costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from fedveil.privacy.loss import as_written


@dataclass(frozen=True)
class CostKey:
    """The parameter of a protection that decides what a report costs.

    `fedveil budget --target-epsilon` searches for the value at which a run meets the target.

    - `parameter` is the parameter's path within the protection's block, with dots between blocks.
    - `falls` is True if a larger value costs less.
    - `start` is where the search starts if the parameter is null.
    - `instead` are other parameters that determine the same quantity. Setting `parameter` sets them
      to null.
    - `total` is a parameter that limits the cost of a run if the protection is adaptive, that is,
      if a round's cost depends on earlier rounds. If `total` is None, no value can be found for
      such a run.
    """

    parameter: str
    falls: bool = False
    start: float = 1.0
    instead: tuple[str, ...] = ()
    total: str | None = None

    def of(self, settings: Mapping[str, Any]) -> float:
        """Return the value of `parameter` in the given `settings`, or `start` if it is null."""
        value: Any = settings
        for name in self.parameter.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return self.start if value is None else float(value)

    def changes(self, settings: Mapping[str, Any], value: float) -> Iterator[tuple[str, Any]]:
        """Yield pairs (name, new value): `parameter` gets `value`, and all of `instead` null."""
        yield from ((name, None) for name in self.instead if settings.get(name) is not None)
        yield self.parameter, value

    def put(self, settings: Mapping[str, Any], value: float) -> dict[str, Any]:
        """Return `settings` with `parameter` set to `value`, and all of `instead` set to null."""
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
        """Round `value`, a value of `parameter`, to `digits` significant digits.

        It is rounded up if a larger value costs less (`falls`), and otherwise down. So the privacy
        cost does not rise.
        """
        way = ROUND_CEILING if self.falls else ROUND_FLOOR
        return float(Context(prec=digits, rounding=way).create_decimal(as_written(value)))

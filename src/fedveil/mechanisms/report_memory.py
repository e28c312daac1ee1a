"""Stores the report of each example, so that each report is drawn only once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedveil.base.array_types import Array, Int64s, Uint8s
from fedveil.base.message import Message
from fedveil.base.validate import integer
from fedveil.errors import InvalidValue

Rows = Uint8s
_FIRST_ROWS = 1 << 8


class ReportMemory:
    """Stores one report of `width` bytes for each key. A key is an example's number or id.

    Privacy: repeating a stored report reveals nothing new, so an example is charged once. A process
    that may be interrupted must save `to_state` before it sends a new report. Otherwise it would
    draw a second report after a restart, and charge the example again.
    """

    def __init__(self, width: int) -> None:
        self.width = integer("width", width, 1)
        self._rows: Rows = np.empty((_FIRST_ROWS, self.width), np.uint8)
        self._places: dict[int | str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def reports(self, keys: Iterable[int | str] | Array, draw: Callable[[Int64s], Rows]) -> Rows:
        """Return the reports of `keys`, one row each. Draws and stores those that are missing.

        `draw` receives the positions in `keys` of the missing reports, and must return a row of
        `width` bytes for each. If a key occurs several times, `draw` receives only its first
        position. If `draw` raises an error, nothing is stored.
        """
        named = _plain_keys(keys)
        new = {
            key: place for place, key in reversed(list(enumerate(named))) if key not in self._places
        }
        if new:
            places = np.array(sorted(new.values()), np.int64)
            rows = np.asarray(draw(places))
            if rows.shape != (len(places), self.width) or rows.dtype != np.uint8:
                raise InvalidValue(
                    f"draw gave {rows.dtype} of shape {rows.shape}, uint8 of shape "
                    f"{(len(places), self.width)} is needed"
                )
            self._append([named[place] for place in places.tolist()], rows)
        return self._rows[[self._places[key] for key in named]]

    def _append(self, keys: list[int | str], rows: Rows) -> None:
        begin, end = len(self), len(self) + len(rows)
        if end > len(self._rows):
            grown = np.empty((max(end, 2 * len(self._rows)), self.width), np.uint8)
            grown[:begin] = self._rows[:begin]
            self._rows = grown
        self._rows[begin:end] = rows
        self._places.update(zip(keys, range(begin, end), strict=True))

    def to_state(self) -> Message:
        """Return the stored keys and reports as a `Message`, for a checkpoint."""
        return {"keys": json.dumps(list(self._places)), "rows": self._rows[: len(self)].copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ReportMemory:
        """Restore a memory from `state`, the result of `to_state`."""
        try:
            keys, rows = _plain_keys(json.loads(state["keys"])), state["rows"]
            memory = cls(rows.shape[1])
            if rows.dtype != np.uint8 or len(set(keys)) != len(rows) or len(keys) != len(rows):
                raise ValueError("the keys and rows do not belong together")
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise InvalidValue(f"state is not one of a report memory: {error!r}") from None
        memory._append(keys, rows)
        return memory


def _plain_keys(keys: Iterable[int | str] | Array) -> list[int | str]:
    plain = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
    for key in plain:
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise InvalidValue(f"keys holds {key!r}, only whole numbers and texts can be")
    return plain

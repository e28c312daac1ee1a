"""Reports that are drawn once: of a key that is repeated, and beyond the rows held at first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.errors import InvalidValue
from fedveil.mechanisms.report_memory import ReportMemory


class Drawn:
    """Draws two bytes of a counter for each place, and notes the places that were asked for."""

    def __init__(self) -> None:
        self.places: list[list[int]] = []
        self.count = 0

    def __call__(self, places: np.ndarray) -> np.ndarray:
        self.places.append(places.tolist())
        numbers = self.count + np.arange(len(places))
        self.count += len(places)
        return np.stack([numbers // 256, numbers % 256], axis=1).astype(np.uint8)


def numbers(rows: np.ndarray) -> list[int]:
    return [int(high) * 256 + int(low) for high, low in rows]


def test_a_repeated_key_is_drawn_for_its_first_place() -> None:
    memory, drawn = ReportMemory(2), Drawn()
    first = memory.reports([7, "a", 7, 3, "a"], drawn)
    assert (drawn.places, numbers(first)) == ([[0, 1, 3]], [0, 1, 0, 2, 1])
    second = memory.reports(np.array([3, 5, 7, 5]), drawn)
    assert (drawn.places[1:], numbers(second)) == ([[1]], [2, 3, 0, 3])
    assert numbers(memory.reports(["a", 5], drawn)) == [1, 3]
    assert (len(drawn.places), len(memory)) == (2, 4)


def test_more_reports_than_rows_at_first_are_all_kept() -> None:
    memory, drawn = ReportMemory(2), Drawn()
    for start, stop in ((0, 200), (100, 300), (250, 1500)):
        memory.reports(range(start, stop), drawn)
    assert numbers(memory.reports(range(1500), drawn)) == list(range(1500))
    again = ReportMemory.from_state(memory.to_state())
    assert numbers(again.reports([999, 0, 256, 1500], drawn)) == [999, 0, 256, 1500]


@pytest.mark.parametrize(
    "rows", [np.zeros((1, 2), np.uint8), np.zeros((2, 3), np.uint8), np.zeros((2, 2), np.int64)]
)
def test_rows_that_do_not_fit_are_not_stored(rows: Any) -> None:
    memory = ReportMemory(2)
    with pytest.raises(InvalidValue, match="draw gave"):
        memory.reports([1, 2], lambda places: rows)
    assert len(memory) == 0


@pytest.mark.parametrize(
    "state",
    [
        {"keys": "[1, 1]", "rows": np.zeros((2, 2), np.uint8)},
        {"keys": "[1, 2]", "rows": np.zeros((3, 2), np.uint8)},
        {"keys": "[1]", "rows": np.zeros((1, 2), np.int8)},
        {"keys": "[1", "rows": np.zeros((1, 2), np.uint8)},
        {"keys": "[1.5]", "rows": np.zeros((1, 2), np.uint8)},
        {"rows": np.zeros((0, 2), np.uint8)},
    ],
)
def test_a_state_whose_keys_and_rows_do_not_belong_together_is_refused(state: Any) -> None:
    with pytest.raises(InvalidValue):
        ReportMemory.from_state(state)


@pytest.mark.parametrize("keys", [[1, True], np.array([True, False]), [1.0]])
def test_only_whole_numbers_and_texts_are_keys(keys: Any) -> None:
    """True equals 1 in a table, so that two examples would share a report."""
    with pytest.raises(InvalidValue, match="only whole numbers and texts can be"):
        ReportMemory(3).reports(keys, lambda places: np.zeros((len(places), 3), np.uint8))

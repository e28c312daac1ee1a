"""A figure that was measured once has the unit of its axis."""

from __future__ import annotations

import math

import pytest

from fedveil.pages.plot import Axis
from fedveil.pages.single_points import shown


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("percent", 0.9314, "93.1%"), ("bytes", 31_700_000, "31.7 MB"),
        ("seconds", 61.25, "61.2 s"), ("", 1234.5678, "1,235"), ("percent", math.nan, "undefined"),
    ],
)  # fmt: skip
def test_a_value_is_shown_in_its_unit(unit: str, value: float, text: str) -> None:
    assert shown(value, Axis("a", unit=unit)) == text  # type: ignore[arg-type]

"""A figure that was measured once has the unit of its axis."""

from __future__ import annotations

import math

import pytest

from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.single_points import shown, single_points


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("percent", 0.9314, "93.1%"), ("bytes", 31_700_000, "31.7 MB"),
        ("seconds", 61.25, "61.2 s"), ("", 1234.5678, "1,235"), ("percent", math.nan, "undefined"),
        ("seconds", -math.inf, "undefined"), ("epsilon", 1.886404, "1.887"),
        ("epsilon", math.inf, "undefined"),
    ],
)  # fmt: skip
def test_a_value_is_shown_in_its_unit(unit: str, value: float, text: str) -> None:
    assert shown(value, Axis("a", unit=unit)) == text  # type: ignore[arg-type]


def test_a_row_has_its_curves_name_and_each_value_its_own_axis() -> None:
    both = [Curve("one", [3], [0.25]), Curve("two", [5], [0.5])]
    plots = [
        Plot("a", "Accuracy", Axis("round"), Axis("a", unit="percent"), both),
        Plot(
            "b", "Upload", Axis("step"), Axis("b", unit="bytes"), [Curve("one", [1234567], [2500])]
        ),
    ]
    assert single_points(plots).rows == [
        ["Accuracy: one", "round 3", "25.0%"], ["Accuracy: two", "round 5", "50.0%"],
        ["Upload", "step 1,234,567", "2.5 KB"],
    ]  # fmt: skip
    cost = Plot("d", "D", Axis("epsilon", unit="epsilon"), Axis("y"), [Curve("own", [1.8801], [1])])
    assert single_points([cost]).rows == [["D", "epsilon 1.89", "1"]]
    for apart in (3, math.inf):
        alone = Curve("own", [3, apart], [1, 2])
        assert not Plot("c", "C", Axis("x"), Axis("y"), [alone]).has_line

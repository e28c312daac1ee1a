"""Bars with error bars, on named places, in a page and as SVG."""

from __future__ import annotations

import pytest

from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.plotly_figure import figure
from fedveil.pages.svg import svg

NAMES = ("rye", "<b>oat</b>", "$x")


def plot(*, errors: bool) -> Plot:
    ends = {"low": (1.0, 3.5, 0.0), "high": (4.0, 4.5, 2.0)} if errors else {}
    bars = Curve("fields", (0, 1, 2), (2.0, 4.0, -1.5), bars=True, **ends)  # type: ignore[arg-type]
    return Plot("crops", "Crops", Axis("crop", names=NAMES), Axis("rows"), [bars])


def test_a_bar_has_its_interval_and_an_escaped_name() -> None:
    drawn = figure(plot(errors=True))
    (bar,) = drawn["data"]
    assert bar["type"] == "bar"
    assert bar["y"] == [2.0, 4.0, -1.5]
    assert bar["error_y"]["array"] == pytest.approx([2.0, 0.5, 3.5])
    assert bar["error_y"]["arrayminus"] == pytest.approx(
        [1.0, 0.5, 0.0]
    )  # a count below its interval
    assert drawn["layout"]["xaxis"]["ticktext"] == ["rye", "&lt;b&gt;oat&lt;/b&gt;", "$x"]
    assert "error_y" not in figure(plot(errors=False))["data"][0]


@pytest.mark.parametrize("errors", [True, False])
def test_bars_are_drawn_as_svg_with_names_as_they_are(errors: bool) -> None:
    pytest.importorskip("matplotlib")
    text = svg(plot(errors=errors)).decode()
    assert "rye" in text
    assert "$x" in text

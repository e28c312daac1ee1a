"""Converts a plot to the dictionary that plotly's script draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from fedveil.pages.colours import Look, looks
from fedveil.pages.plot import Axis, Curve, Plot

#: An axis with fewer integers than this labels all of them.
_FEW = 12
#: An axis with a smaller ratio of its ends than this also labels 2 and 5 in each decade.
_FEW_DECADES = 300
_MARKERS = (
    "circle", "square", "diamond", "triangle-down", "triangle-up", "pentagon", "x", "star",
)  # fmt: skip
#: Line styles: solid first.
_STYLES = ("solid", "dot", "dashdot", "longdash")


def figure(plot: Plot) -> dict[str, Any]:
    """Return the argument of plotly's `Figure`: a dictionary with the data and the layout."""
    traces: list[dict[str, Any]] = []
    for number, (curve, look) in enumerate(zip(plot.curves, looks(plot.curves), strict=True)):
        if curve.bars:
            traces.append(_bars(curve, look))
            continue
        if curve.low:
            traces.append(_spread(curve, number, look))
        traces.append(_line(curve, number, look))
    layout = {
        "autosize": True,
        "height": 320 + 22 * _rows_of_names(plot.curves),
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "dragmode": False,
        "showlegend": len(plot.curves) > 1,
        "legend": {"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"},
        "xaxis": _axis(plot.x, [x for curve in plot.curves for x in curve.x]),
        "yaxis": _axis(plot.y, [y for curve in plot.curves for y in curve.y]),
    }
    return {"data": traces, "layout": layout}


def _line(curve: Curve, number: int, look: Look) -> dict[str, Any]:
    marks = look.marks or len(curve.x) < 2
    style = "dash" if curve.dashed else _STYLES[look.style % len(_STYLES)]
    symbol = _MARKERS[look.marker % len(_MARKERS)]
    return {
        "type": "scatter",
        "name": escape(curve.name),
        "legendgroup": str(number),
        "mode": "lines+markers" if marks else "lines",
        "x": _drawn(curve.x),
        "y": _drawn(curve.y),
        "line": {"color": look.colour, "width": 2, "dash": style},
        "marker": {"color": look.colour, "symbol": symbol, "size": 7},
    }


def _bars(curve: Curve, look: Look) -> dict[str, Any]:
    errors: dict[str, Any] = {}
    if curve.low:
        above = [max(0.0, high - y) for y, high in zip(curve.y, curve.high, strict=True)]
        below = [max(0.0, y - low) for y, low in zip(curve.y, curve.low, strict=True)]
        drawn = {"array": _drawn(above), "arrayminus": _drawn(below)}
        errors = {"error_y": {"type": "data", "symmetric": False, **drawn}}
    return {
        "type": "bar",
        "name": escape(curve.name),
        "x": _drawn(curve.x),
        "y": _drawn(curve.y),
        "marker": {"color": look.colour},
        **errors,
    }


def _spread(curve: Curve, number: int, look: Look) -> dict[str, Any]:
    """Return plotly's settings for the area between a curve's finite values of `low` and `high`.

    `number` is the curve's number in the plot, and `look` has its colour.
    """
    points = [
        (x, low, high)
        for x, low, high in zip(curve.x, curve.low, curve.high, strict=True)
        if math.isfinite(x) and math.isfinite(low) and math.isfinite(high)
    ]
    red, green, blue = bytes.fromhex(look.colour[1:])
    return {
        "type": "scatter",
        "name": escape(curve.name),
        "legendgroup": str(number),
        "showlegend": False,
        "hoverinfo": "skip",
        "mode": "lines",
        "x": [x for x, _, _ in points] + [x for x, _, _ in reversed(points)],
        "y": [low for _, low, _ in points] + [high for _, _, high in reversed(points)],
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.18)",
        "line": {"width": 0},
    }


def _axis(axis: Axis, points: Sequence[float]) -> dict[str, Any]:
    return {
        "title": {"text": escape(axis.title), "standoff": 8},
        "type": "log" if axis.log else "linear",
        "automargin": True,
        "zeroline": False,
        "rangemode": "tozero" if axis.zero else "normal",
        **({"tickformat": ".1~%"} if (axis.unit == "percent") else {}),
        **_ticks(axis, [point for point in points if math.isfinite(point)]),
    }


def _ticks(axis: Axis, points: Sequence[float]) -> dict[str, Any]:
    """Return the tick settings of an axis that shows the values `points`.

    A short axis of integers has ticks only at integers.
    """
    if axis.names:
        names = [escape(name) for name in axis.names]
        return {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": names}
    if axis.log:
        above = [point for point in points if point > 0]
        few = bool(above) and max(above) / min(above) < _FEW_DECADES
        return {"dtick": "D2" if few else 1, "tickformat": "~g"}
    if points and min(points) == max(points) and not float(points[0]).is_integer():
        beside = abs(points[0]) / 10  # plotly's default, 2 wide, shows accuracies above 1
        ends = [points[0] - beside, points[0] + beside]
        return {"range": [min(0, *ends), max(0, *ends)] if axis.zero else ends}
    if (
        (axis.unit == "percent")
        or not points
        or not all(float(point).is_integer() for point in points)
    ):
        return {}
    return {"dtick": 1} if max(points) - min(points) < _FEW else {"tickformat": ",d"}


def _rows_of_names(curves: Sequence[Curve]) -> int:
    """Return how many lines the legend needs on a phone, with about two names per line."""
    return 0 if len(curves) < 2 else math.ceil(sum(len(c.name) + 6 for c in curves) / 40)


def _drawn(values: Sequence[float]) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]

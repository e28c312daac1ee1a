"""Collects plots that have too few points for a curve, and shows them in one table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedveil.pages.plot import Axis, Plot
from fedveil.pages.table import Table
from fedveil.privacy.loss import format_epsilon
from fedveil.record.byte_count import shown_bytes


def single_points(plots: Sequence[Plot]) -> Table:
    rows = [
        [
            plot.title if len(plot.curves) == 1 else f"{plot.title}: {curve.name}",
            f"{plot.x.title} {format_epsilon(x) if plot.x.unit == 'epsilon' else f'{x:,.12g}'}",
            shown(y, plot.y),
        ]
        for plot in plots
        for curve in plot.curves
        for x, y in zip(curve.x, curve.y, strict=True)
    ]
    return Table(["measured once", "at", "value"], rows)


def shown(value: float, axis: Axis) -> str:
    """Format a value with the unit of its axis."""
    if not math.isfinite(value):
        return "undefined"
    match axis.unit:
        case "percent":
            return f"{100 * value:.1f}%"
        case "bytes":
            return shown_bytes(value)
        case "seconds":
            return f"{value:,.3g} s"
        case "epsilon":
            return format_epsilon(value, 4)
        case _:
            return f"{value:,.4g}"

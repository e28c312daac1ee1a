"""A plot as an SVG file. Equal plots give equal bytes."""

from __future__ import annotations

import io
import math
from typing import Any

from fedveil.base.untrusted import escaped
from fedveil.errors import MissingExtra
from fedveil.pages.plot import COLOURS, Plot

_MARKERS = "osD^vPX*"
_LONGEST = 100
_LOOKS: dict[Any, Any] = {
    "svg.hashsalt": "fedveil",  # otherwise part names are random
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def svg(plot: Plot) -> bytes:
    """Return the bytes of an SVG file that shows the plot."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "report", "a plot as SVG") from None
    with mpl.rc_context(_LOOKS):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        for number, curve in enumerate(plot.curves):
            look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)]}
            if curve.bars:
                if curve.low:
                    below = [max(0.0, y - low) for y, low in zip(curve.y, curve.low, strict=True)]
                    above = [
                        max(0.0, high - y) for y, high in zip(curve.y, curve.high, strict=True)
                    ]
                    look["yerr"] = [below, above]
                axes.bar(curve.x, curve.y, label=text_of(curve.name), **look)
                continue
            if curve.low:
                axes.fill_between(curve.x, curve.low, curve.high, alpha=0.15, lw=0, **look)
            if curve.marks:
                look["marker"] = _MARKERS[number % len(_MARKERS)]
            style = "--" if curve.dashed else "-"
            axes.plot(
                curve.x, [_drawn(y) for y in curve.y], style, label=text_of(curve.name), **look
            )
        axes.set_title(text_of(plot.title))
        axes.set(xlabel=text_of(plot.x.title), ylabel=text_of(plot.y.title))
        axes.set_xscale("log" if plot.x.log else "linear")
        axes.set_yscale("log" if plot.y.log else "linear")
        if plot.x.names:  # after the scale, which has ticks of its own
            names = [text_of(name) for name in plot.x.names]
            axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        if plot.y.zero:
            axes.set_ylim(bottom=0)
        if len(plot.curves) > 1:
            axes.legend(frameon=False, fontsize=9)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def text_of(name: str) -> str:
    """Return `name` in a form that matplotlib draws literally, on one line.

    A name may come from a record. In it, `$` would start a formula, and a leading `_` would hide
    the curve's legend entry.
    """
    line = escaped(name.replace("\n", "\\n").replace("\t", " "))
    line = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
    return (" " if line.startswith("_") else "") + line.replace("$", r"\$")


def _drawn(y: float) -> float:
    return y if math.isfinite(y) else math.nan

"""Draws a plot as an SVG file with title and legend. Equal plots give equal bytes."""

from __future__ import annotations

from html import escape

from fedveil.pages.chart import draw, fitted, sample
from fedveil.pages.colours import looks
from fedveil.pages.plot import Plot

_WIDTH, _HEIGHT, _EDGE, _LINE = 640, 400, 12, 20
#: The longest title or name that fits into the width.
_LONGEST = 100
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #222; }
.title { font-size: 15px; font-weight: 600; }
.axis { fill: #555; }
.grid { stroke: #ddd; fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.dashed .line { stroke-dasharray: 6 4; }
.mark { stroke: none; }
.spread { stroke: none; fill-opacity: .15; }
.bar { stroke: none; fill-opacity: .7; }
.error { fill: none; stroke: #222; stroke-width: 1.5; }
"""


def svg(plot: Plot) -> bytes:
    """Return the bytes of an SVG file that shows the plot on white, with title and legend."""
    title = escape(fitted(plot.title, _LONGEST))
    several = plot.curves if len(plot.curves) > 1 else ()
    legend = "".join(
        f'<g transform="translate(0 {_HEIGHT + 8 + number * _LINE})">{sample(curve, look)}'
        f'<text x="34" y="10">{escape(fitted(curve.name, _LONGEST))}</text></g>'
        for number, (curve, look) in enumerate(zip(several, looks(several), strict=True))
    )
    width = _WIDTH + 2 * _EDGE
    height = _HEIGHT + 2 * _EDGE + 28 + _LINE * len(several)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{title}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/><g transform="translate({_EDGE} {_EDGE})">'
        f'<text class="title" x="0" y="14">{title}</text><g transform="translate(0 28)">'
        f"{draw(plot, _WIDTH, _HEIGHT).elements}{legend}</g></g></svg>\n"
    ).encode(errors="xmlcharrefreplace")

"""Draws a plot as SVG: a few KB of lines and text, without a script or a plotting package."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any, NamedTuple

from fedveil.base.untrusted import escaped
from fedveil.pages.axis_scale import Scale, scale_of
from fedveil.pages.colours import Look, looks
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.privacy.loss import format_epsilon

#: The width and height of a drawing on a page, in SVG units.
WIDTH, HEIGHT = 340, 225
#: A curve with more points is cut into pieces of equal length. Each piece keeps only its first,
#: last, lowest and highest point.
MOST_POINTS = 1000
#: The width of a character, the space around a text, and the height of a line of text.
_LETTER, _SPACE, _LINE = 7.2, 7, 16
#: The longest label of the x axis.
_LONGEST_LABEL = 14
#: The outlines of the markers, around a marker's centre, as commands of an SVG path.
_MARKS = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", "m-3 -3h6v6h-6z",
    "m0 -4.4l4.4 4.4l-4.4 4.4l-4.4 -4.4z",
    "m0 4l-4 -7h8z", "m0 -4l4 7h-8z", "m-1.2 -4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z",
    "m-4 -2.5h8v5h-8z", "m-2.5 -4h5v8h-5z",
)  # fmt: skip
#: Lengths of the dashes and gaps of each line style: solid first.
_DASHES = ("", "2 3", "7 3 2 3", "10 4")


class Frame(NamedTuple):
    """The edges of the area of a plot in which curves are drawn, in the plot's units."""

    left: float
    top: float
    right: float
    bottom: float


class Drawing(NamedTuple):
    """A drawn plot: its SVG elements, and its values as data for the page's script."""

    elements: str
    data: dict[str, Any]


def draw(plot: Plot, width: int = WIDTH, height: int = HEIGHT) -> Drawing:
    """Draw a plot in `width` times `height` units, without its title and its legend."""
    thin, styles = [_thinned(curve) for curve in plot.curves], looks(plot.curves)
    x = scale_of(plot.x, (v for curve in thin for v in curve.x), tight=True)
    y = scale_of(plot.y, _extent(thin))
    longest = max((len(label) for _, label in y.ticks), default=0)
    frame = Frame(
        _SPACE + _LETTER * longest, _LINE + _SPACE + 2, width - 14.0, height - 2.0 * _LINE - _SPACE
    )
    most = int((width - 2 * _SPACE) / 6.2)
    named = "" if plot.y.title.casefold() == plot.title.casefold() else _text(plot.y, most)
    parts = [
        *_grid(x, y, frame),
        f'<text class="axis" x="0" y="11">{named}</text>' if named else "",
        f'<text class="axis" x="{frame.right:.0f}" y="{height - 3}" text-anchor="end">'
        f"{_text(plot.x, most)}</text>",
        *(_curve(curve, look, x, y, frame) for curve, look in zip(thin, styles, strict=True)),
    ]
    data = {
        "box": [round(edge, 1) for edge in frame],
        "width": width,
        "x": {"low": x.low, "high": x.high, "log": x.log, "unit": plot.x.unit,
              "title": escaped(plot.x.title)}
        | ({"names": [*map(escaped, plot.x.names)]} if plot.x.names else {}),
        "unit": plot.y.unit,
        "curves": [
            {"name": escaped(curve.name), "colour": look.colour, "x": _sent(curve.x, plot.x)}
            | {key: _sent(values, plot.y)
               for key, values in (("y", curve.y), ("low", curve.low), ("high", curve.high))
               if values}
            for curve, look in zip(thin, styles, strict=True)
        ],
    }  # fmt: skip
    return Drawing("".join(parts), data)


def sample(curve: Curve, look: Look) -> str:
    """Return SVG elements, 26 by 12 units, that show a curve's line and marker in a legend.

    `look` has the curve's colour, marker and line style. A lone point has a marker and no line.
    """
    line = _line(look, "M1 6H25") if curve.has_line or curve.bars else ""
    mark = f'<path class="mark" d="M13 6{_mark(look)}"/>' if look.marks or not line else ""
    return f"<g {_attributes(curve, look)}>{line}{mark}</g>"


def fitted(text: str, most: int) -> str:
    """Return `text` on one line, with control characters escaped, cut to `most` characters."""
    line = escaped(text.replace("\n", "\\n").replace("\t", " "))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _text(axis: Axis, most: int) -> str:
    return escape(fitted(axis.title, most))


def _extent(curves: Sequence[Curve]) -> Iterator[float]:
    for curve in curves:
        if curve.bars:
            yield 0.0
        for values in (curve.y, curve.low, curve.high):
            yield from values


def _grid(x: Scale, y: Scale, frame: Frame) -> Iterator[str]:
    lines, labels = "", ""
    for value, label in y.ticks:
        at = _place(y, value, frame.bottom, frame.top)
        lines += f"M{frame.left:.1f} {at:.1f}H{frame.right:.1f}"
        labels += (
            f'<text x="{frame.left - _SPACE:.1f}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
        )
    for value, label in _apart(x.ticks, frame.right - frame.left):
        at = _place(x, value, frame.left, frame.right)
        labels += (
            f'<text x="{at:.1f}" y="{frame.bottom + _LINE:.1f}" text-anchor="middle">{label}</text>'
        )
    yield f'<path class="grid" d="{lines}"/><g class="ticks">{labels}</g>'


def _apart(ticks: Sequence[tuple[float, str]], width: float) -> Iterator[tuple[float, str]]:
    """Yield every n-th label of the x axis, as (value, text in SVG).

    `ticks` has all labels. n is the least number for which the yielded labels fit into `width`
    units.
    """
    names = [(value, fitted(label, _LONGEST_LABEL)) for value, label in ticks]
    longest = max((len(label) for _, label in names), default=0)
    every = math.ceil(len(names) * (_LETTER * longest + _SPACE) / width) or 1
    for value, label in names[::every]:
        yield value, escape(label)


def _place(scale: Scale, value: float, start: float, end: float) -> float:
    return start + (scale.at(value) or 0.0) * (end - start)


def _curve(curve: Curve, look: Look, x: Scale, y: Scale, frame: Frame) -> str:
    """Return the SVG of a curve. A point between two gaps gets a marker, as it has no line.

    `x` and `y` are the scales of the axes, and `frame` is the area in which the curve is drawn.
    """
    if curve.bars:
        return f"<g {_attributes(curve, look)}>{_bars(curve, x, y, frame)}</g>"
    pieces = list(_pieces(curve.x, curve.y, x, y, frame))
    line = "".join(f"M{_path(piece)}" for piece in pieces if len(piece) > 1)
    marked = [p for piece in pieces if look.marks or len(piece) == 1 for p in piece]
    marks = "".join(f"M{px:.1f} {py:.1f}{_mark(look)}" for px, py in marked)
    spread = _spread(curve, x, y, frame) if curve.low else ""
    return (
        f"<g {_attributes(curve, look)}>"
        + (f'<path class="spread" d="{spread}"/>' if spread else "")
        + (_line(look, line) if line else "")
        + (f'<path class="mark" d="{marks}"/>' if marks else "")
        + "</g>"
    )


def _bars(curve: Curve, x: Scale, y: Scale, frame: Frame) -> str:
    bars, errors, base = "", "", _place(y, 0.0, frame.bottom, frame.top)
    half = 0.4 / (x.high - x.low) * (frame.right - frame.left)
    ends = zip(curve.low or curve.y, curve.high or curve.y, strict=True)
    for at, value, (low, high) in zip(curve.x, curve.y, ends, strict=True):
        if None in (x.at(at), y.at(value), y.at(low), y.at(high)):
            continue
        across = _place(x, at, frame.left, frame.right)
        top, below, above = (_place(y, v, frame.bottom, frame.top) for v in (value, low, high))
        bars += f"M{across - half:.1f} {base:.1f}V{top:.1f}h{2 * half:.1f}V{base:.1f}z"
        errors += f"M{across:.1f} {below:.1f}V{above:.1f}" if low < high else ""
    drawn = f'<path class="bar" d="{bars}"/>'
    return drawn + (f'<path class="error" d="{errors}"/>' if errors else "")


def _mark(look: Look) -> str:
    return _MARKS[look.marker % len(_MARKS)]


def _line(look: Look, path: str) -> str:
    dashes = _DASHES[look.style % len(_DASHES)]
    style = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path class="line"{style} d="{path}"/>'


def _attributes(curve: Curve, look: Look) -> str:
    is_dashed, own = " dashed" if curve.dashed else "", look.colour
    return f'class="curve{is_dashed}" style="--c:{own}" fill="{own}" stroke="{own}"'


def _pieces(
    xs: Iterable[float], ys: Iterable[float], x: Scale, y: Scale, frame: Frame
) -> Iterator[list[tuple[float, float]]]:
    """Yield each gapless stretch of a curve, as the coordinates of its points in the plot.

    `xs` and `ys` are the values of the points, and `x` and `y` the scales of the axes. `frame` is
    the area in which the curve is drawn.
    """
    piece: list[tuple[float, float]] = []
    for across, up in zip(xs, ys, strict=True):
        if x.at(across) is not None and y.at(up) is not None:
            piece.append((
                _place(x, across, frame.left, frame.right),
                _place(y, up, frame.bottom, frame.top),
            ))  # fmt: skip
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _spread(curve: Curve, x: Scale, y: Scale, frame: Frame) -> str:
    known = [
        (at, low, high)
        for at, low, high in zip(curve.x, curve.low, curve.high, strict=True)
        if None not in (x.at(at), y.at(low), y.at(high))
    ]
    around = [(at, high) for at, _, high in known] + [(at, low) for at, low, _ in reversed(known)]
    pieces = _pieces([at for at, _ in around], [up for _, up in around], x, y, frame)
    return "".join(f"M{_path(piece)}Z" for piece in pieces)


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "L".join(f"{across:.1f} {up:.1f}" for across, up in points)


def _thinned(curve: Curve) -> Curve:
    count = len(curve.x)
    if count <= MOST_POINTS:
        return curve
    length = math.ceil(count / (MOST_POINTS // 4))
    kept: list[int] = []
    for start in range(0, count, length):
        piece = range(start, min(start + length, count))
        known = [n for n in piece if math.isfinite(curve.y[n])] or [start]
        ends = {piece[0], piece[-1]}
        kept += sorted(
            {min(known, key=curve.y.__getitem__), max(known, key=curve.y.__getitem__)} | ends
        )
    x, y, low, high = (
        [values[n] for n in kept] if values else []
        for values in (curve.x, curve.y, curve.low, curve.high)
    )
    return replace(curve, x=x, y=y, low=low, high=high)


def _sent(values: Iterable[float], axis: Axis) -> list[float | None]:
    """Round the values of a curve to six significant digits, for the page's script.

    Infinities and NaN become None. If the unit of `axis` is "epsilon", values are rounded up to
    five digits instead.
    """
    rounded = _up if axis.unit == "epsilon" else "{:.6g}".format
    return [float(rounded(value)) if math.isfinite(value) else None for value in values]


def _up(epsilon: float) -> str:
    return format_epsilon(epsilon, 5).replace(",", "")

"""Colours, markers and line styles of curves. A protection has the same colour in every plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedveil.pages.plot import Curve

#: Each protection's colour (after Okabe and Ito). Any two differ for the colour-blind too, and each
#: has a contrast of at least 3 with a white page.
PROTECTIONS = {
    "distributed_dp": "#0072B2",
    "dp_encrypt": "#D55E00",
    "signds": "#009E73",
    "rr": "#CC79A7",
    "oue": "#A5873C",
    "central_gaussian": "#229BE0",
    "pw_encrypt": "#A577B8",
    "not_encrypt": "#7F7F7F",
}
#: Colours of curves that belong to no protection, in order.
_OTHERS = tuple(PROTECTIONS.values())


class Look(NamedTuple):
    """The look of a curve: its colour, and the numbers of its marker and of its line style.

    Line style 0 is solid. `marks` is True if every point gets a marker.
    """

    colour: str
    marker: int
    style: int
    marks: bool


def looks(curves: Sequence[Curve]) -> list[Look]:
    """Return the look of each curve.

    Curves of the same protection share a colour. A curve on top of an equal one has another line
    style, so that both show.
    """
    places = {name: place for place, name in enumerate(PROTECTIONS)}
    seen, found = Counter[str](), []
    for number, curve in enumerate(curves):
        name = curve.protection
        below = sum(_equal(curve, other) for other in curves[:number])
        if name not in PROTECTIONS:
            found.append(Look(_OTHERS[number % len(_OTHERS)], number, below, curve.marks))
            continue
        again = seen[name]
        marks = curve.marks or again > 0
        found.append(Look(PROTECTIONS[name], places[name] + again, max(again, below), marks))
        seen[name] += 1
    return found


def _equal(curve: Curve, other: Curve) -> bool:
    return [*curve.x] == [*other.x] and [*curve.y] == [*other.y]

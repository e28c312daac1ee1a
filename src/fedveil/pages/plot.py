"""A plot as data, from which pages and image files are drawn."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, SupportsFloat, TypeAlias

from fedveil.errors import InvalidValue

#: The unit of an axis's values, which decides how they are written. "" means plain numbers.
Unit: TypeAlias = Literal["", "percent", "bytes", "seconds", "epsilon"]

#: A name that can be part of a file name, and of a link to it, on every system.
_OF_A_FILE = re.compile("[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True)
class Axis:
    """An axis with its title. It is logarithmic if `log`, and begins at 0 if `zero`.

    `unit` determines the format of the labels. `names`, if given, label the values 0, 1, 2, ...
    """

    title: str
    log: bool = False
    zero: bool = False
    unit: Unit = ""
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Curve:
    """A curve through points in order. Values that are not finite are gaps.

    `low` and `high` are the bounds of the spread over several runs. If `marks` is True, each point
    has a marker. If `bars` is True, each point is a bar from 0. `protection` is the name of the
    run's protection, which determines the curve's colour.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    marks: bool = False
    dashed: bool = False
    protection: str = ""
    bars: bool = False

    def __post_init__(self) -> None:
        for other in (self.y, self.low or self.x, self.high or self.x):
            if len(other) != len(self.x):
                raise InvalidValue(f"the curve {self.name} has {len(self.x)} x and {len(other)} y")
        for value in chain(self.x, self.y, self.low, self.high):
            if not isinstance(value, SupportsFloat):  # a record may contain anything
                raise InvalidValue(f"the curve {self.name} has a point that is no number")
            float(value)  # raises OverflowError for an integer too large for a float

    @property
    def has_line(self) -> bool:
        """True if at least two finite points have different x."""
        points = zip(self.x, self.y, strict=True)
        return len({x for x, y in points if math.isfinite(x) and math.isfinite(y)}) > 1


@dataclass(frozen=True)
class Plot:
    """Curves with common axes. `note` is a remark for the reader."""

    name: str
    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    note: str = ""

    @property
    def has_line(self) -> bool:
        """True if any curve has a line."""
        return any(curve.has_line for curve in self.curves)

    @property
    def file(self) -> str:
        """Return a name for the plot's file. Unusual characters of the plot's name are replaced."""
        if _OF_A_FILE.fullmatch(self.name):
            return self.name
        digest = hashlib.sha256(self.name.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{re.sub('[^A-Za-z0-9]+', '-', self.name)[:40]}-{digest[:16]}"

    def markdown(self, picture: str) -> str:
        """Return Markdown that shows the plot by its image file `picture`."""
        return f"![{self.title}]({picture})\n" + (f"\n{self.note}\n" if self.note else "")

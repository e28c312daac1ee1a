"""The picture of the project: accuracy against epsilon, and the membership attack below it."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.errors import MissingExtra
from fedveil.pages.colours import PROTECTIONS


@dataclass(frozen=True)
class Mark:
    """A point: a protection's test accuracy for each seed, and the AUC of the best attack on it."""

    position: str
    epsilon: float
    accuracies: Sequence[float]
    attack: float

    @property
    def accuracy(self) -> float:
        """The mean accuracy over the seeds."""
        return sum(self.accuracies) / len(self.accuracies)


_DASHES = {"central_gaussian": "--", "oue": "--"}
_MARKERS = {"distributed_dp": "o", "dp_encrypt": "s", "signds": "D", "rr": "^", "oue": "v"}
#: The largest epsilon of each word in privacy/guarantee_strength.py, at delta 0.
_WORDS = (("strong", math.log(3)), ("meaningful", math.log(19)), ("weak", math.log(999)))
#: Least distance of names, in accuracy.
_APART = 0.055
_LOOKS: dict[Any, Any] = {
    "svg.hashsalt": "fedveil",
    "svg.fonttype": "none",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(marks: Sequence[Mark]) -> bytes:
    """Draw an SVG file: accuracy above, the attack below, on one logarithmic axis."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "dev", "the picture") from None
    finite = [mark for mark in marks if math.isfinite(mark.epsilon)]
    with mpl.rc_context(_LOOKS):
        figure = Figure(figsize=(9, 6.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
        left, right = min(m.epsilon for m in finite) / 1.5, max(m.epsilon for m in finite) * 1.6
        for axes in (above, below):
            axes.set_xscale("log")
            axes.set_xlim(left, right)
            axes.grid(axis="y", alpha=0.25)
            _words(axes, left, right, named=axes is above)
        for position in dict.fromkeys(mark.position for mark in finite):
            mine = sorted((m for m in finite if m.position == position), key=lambda m: m.epsilon)
            _curve(above, position, mine, [m.accuracy for m in mine], [m.accuracies for m in mine])
            _curve(below, position, mine, [m.attack for m in mine], ())
        _bare(above, [m for m in marks if not math.isfinite(m.epsilon)], lambda m: m.accuracy)
        _bare(below, [m for m in marks if not math.isfinite(m.epsilon)], lambda m: m.attack)
        _label(above, right)
        above.set_ylim(0, 1.02)
        above.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
        above.set_ylabel("test accuracy")
        above.set_title("the promise:", loc="left", fontsize=9, color="0.35", pad=34)
        below.axhline(0.5, color="0.5", lw=1, ls=":")
        below.set_ylim(0.45, 1.02)
        below.set_yticks([0.5, 0.75, 1], ["0.5 guessing", "0.75", "1 certain"])
        below.set_ylabel("members told\nfrom others (AUC)")
        below.set_xlabel("epsilon of the whole run, for all that a client has (logarithmic)")
        ticks = [10.0**n for n in range(-1, 7) if left <= 10.0**n <= right]
        below.set_xticks(ticks, [f"{tick:,.{0 if tick >= 1 else 1}f}" for tick in ticks])
        below.minorticks_off()
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")
    return file.getvalue()


def _words(axes: Any, left: float, right: float, *, named: bool) -> None:
    """Draw a band for each word (such as "strong"), darker for larger epsilons.

    If `named` is True, the words stand above the bands.
    """
    start = left
    for shade, (word, end) in enumerate((*_WORDS, ("next to none", right))):
        axes.axvspan(start, end, color="black", alpha=0.025 * shade, lw=0)
        if named:
            height = 1.1 if word == "meaningful" else 1.04  # avoids overlap with its neighbours
            where = {"ha": "center", "va": "bottom", "fontsize": 9, "color": "0.35"}
            axes.text(math.sqrt(start * end), height, word, **where)
        start = end


def _curve(
    axes: Any, position: str, mine: Sequence[Mark], values: Sequence[float], each: Sequence[Any]
) -> None:
    x, look = [mark.epsilon for mark in mine], {"color": PROTECTIONS.get(position, "black")}
    if each and max(map(len, each)) > 1:
        axes.fill_between(
            x, [min(e) for e in each], [max(e) for e in each], alpha=0.15, lw=0, **look
        )
    marker, dashes = _MARKERS.get(position, "x"), _DASHES.get(position, "-")
    axes.plot(x, values, dashes, marker=marker, ms=5, lw=2, label=position, **look)


def _bare(axes: Any, marks: Sequence[Mark], value: Any) -> None:
    """Draw protections without an epsilon as horizontal lines."""
    for mark, style in zip(marks, ("-", (0, (2, 2))), strict=False):
        colour = PROTECTIONS.get(mark.position, "black")
        axes.axhline(value(mark), color=colour, lw=1.2, ls=style, label=mark.position)


def _label(axes: Any, right: float) -> None:
    """Write each curve's name at its end, moved down to avoid lines and other names."""
    lines = axes.get_lines()
    bare = [line for line in lines if line.get_marker() == "None"]
    level = [float(line.get_ydata()[-1]) for line in bare]
    taken: list[tuple[float, float]] = []
    for line in sorted(lines, key=lambda one: -float(one.get_ydata()[-1])):
        x, at = float(line.get_xdata()[-1]), float(line.get_ydata()[-1])
        if line not in bare and any(abs(at - other) < _APART for other in level):
            at = min(level) - _APART
        if line in bare or 2 * x > right:  # beside the axes
            x = right
        curves = [] if x == right else [one for one in lines if one not in (line, *bare)]
        while at > 0 and (
            any(abs(at - y) < _APART and x / 30 < end < x * 30 for end, y in taken)
            or any(_crosses(curve, x, at) for curve in curves)
        ):
            at -= 0.01
        taken.append((x, at))
        axes.annotate(
            line.get_label(), (x, at), (x * 1.15, at), color=line.get_color(), fontsize=10,
            va="center", annotation_clip=False,
            bbox={"facecolor": "white", "alpha": 0.7, "lw": 0, "pad": 1},
        )  # fmt: skip


def _crosses(curve: Any, x: float, at: float) -> bool:
    """Return True if a curve passes through a name that begins at `x` and is at the height `at`."""
    ends, heights = curve.get_xdata(), curve.get_ydata()
    passed = [x * 1.15 * step for step in (1, 2, 4)]
    return any(
        ends[0] <= one <= ends[-1]
        and abs(np.interp(math.log(one), np.log(ends), heights) - at) < _APART / 1.5
        for one in passed
    )

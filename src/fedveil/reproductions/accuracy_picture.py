"""The picture of the project: accuracy against epsilon, and how well members are told below it."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.errors import MissingExtra
from fedveil.pages.plot import COLOURS


@dataclass(frozen=True)
class Mark:
    """A point: the test accuracy of each seed, and the area under the best attack's curve."""

    position: str
    epsilon: float
    accuracies: Sequence[float]
    attack: float

    @property
    def accuracy(self) -> float:
        """The mean over the seeds."""
        return sum(self.accuracies) / len(self.accuracies)


#: Each position's colour: those that noise the sum are the darkest.
_COLOURS = dict(
    zip(
        ("distributed_dp", "dp_encrypt", "signds", "rr", "oue", "central_gaussian"),
        COLOURS,
        strict=False,
    )
)
_DASHES = {"central_gaussian": "--", "oue": "--"}
_MARKERS = {"distributed_dp": "o", "dp_encrypt": "s", "signds": "D", "rr": "^", "oue": "v"}
#: Up to which epsilon a promise has its word (privacy/promise.py, delta apart).
_WORDS = (("strong", math.log(3)), ("meaningful", math.log(19)), ("weak", math.log(999)))
_LOOKS: dict[Any, Any] = {
    "svg.hashsalt": "fedveil",
    "svg.fonttype": "none",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(marks: Sequence[Mark]) -> bytes:
    """The picture as an SVG file: accuracy above, the attack below, on one logarithmic axis."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "report", "the picture") from None
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
        below.axhline(0.5, color="0.5", lw=1, ls=":")
        below.set_ylim(0.45, 1.02)
        below.set_yticks([0.5, 0.75, 1], ["0.5 guessing", "0.75", "1 certain"])
        below.set_ylabel("members told\nfrom others (AUC)")
        below.set_xlabel("epsilon of the whole run, for all that a client has (logarithmic)")
        ticks = [10.0**n for n in range(-1, 7) if left <= 10.0**n <= right]
        below.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        below.minorticks_off()
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")
    return file.getvalue()


def _words(axes: Any, left: float, right: float, *, named: bool) -> None:
    """What an epsilon promises, as bands that grow darker where it promises less."""
    start = left
    for shade, (word, end) in enumerate((*_WORDS, ("next to none", right))):
        axes.axvspan(start, end, color="black", alpha=0.025 * shade, lw=0)
        if named:
            middle = math.sqrt(start * end)
            axes.text(middle, 1.04, word, ha="center", va="bottom", fontsize=9, color="0.35")
        start = end


def _curve(
    axes: Any, position: str, mine: Sequence[Mark], values: Sequence[float], each: Sequence[Any]
) -> None:
    x, look = [mark.epsilon for mark in mine], {"color": _COLOURS.get(position, "black")}
    if each and max(map(len, each)) > 1:
        axes.fill_between(
            x, [min(e) for e in each], [max(e) for e in each], alpha=0.15, lw=0, **look
        )
    marker, dashes = _MARKERS.get(position, "x"), _DASHES.get(position, "-")
    axes.plot(x, values, dashes, marker=marker, ms=5, lw=2, label=position, **look)


def _bare(axes: Any, marks: Sequence[Mark], value: Any) -> None:
    """Positions without an epsilon, where they are at any."""
    for mark, style in zip(marks, ("-", (0, (2, 2))), strict=False):
        axes.axhline(value(mark), color="0.2", lw=1.2, ls=style, label=mark.position)


def _label(axes: Any, right: float) -> None:
    """Each curve's name beside its end, moved apart where ends meet."""
    ends = []
    for line in axes.get_lines():
        x, y = float(line.get_xdata()[-1]), float(line.get_ydata()[-1])
        bare = len(line.get_xdata()) == 2 and line.get_marker() == "None"
        ends.append((right if bare else x, y, line.get_label(), line.get_color()))
    taken: list[tuple[float, float]] = []
    for x, y, name, colour in sorted(ends, key=lambda end: -end[1]):
        at = y
        while any(abs(at - other) < 0.055 and (x > right / 20) == (end > right / 20)
                  for end, other in taken):  # fmt: skip
            at -= 0.01
        taken.append((x, at))
        axes.annotate(
            name, (x, y), (x * 1.15, at), color=colour, fontsize=10, va="center",
            annotation_clip=False,
        )  # fmt: skip

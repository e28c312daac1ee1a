"""An axis of a plot: converts values to positions, and chooses the labelled values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedveil.pages.plot import Axis
from fedveil.record.byte_count import UNITS

#: About how many labels an axis has.
_LABELS = 5
#: A logarithmic axis with fewer decades also labels 2 and 5 in each.
_FEW_DECADES = 2.5
#: Values that differ by a smaller share of themselves are drawn as one.
_FLAT = 1e-9
#: The largest value that an axis shows. Squares and differences of such values are finite.
_MOST = 1e100


@dataclass(frozen=True)
class Scale:
    """The range of an axis, `low` to `high`, and its labels in order, as (value, text) pairs."""

    low: float
    high: float
    log: bool
    ticks: Sequence[tuple[float, str]]

    def at(self, value: float) -> float | None:
        """Return the position of `value` on the axis: 0 at `low`, 1 at `high`.

        Returns None for NaN, beyond ±10^100 and, on a logarithmic axis, below 10^-100.
        """
        if not _is_shown(value, log=self.log):
            return None
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(value) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def scale_of(axis: Axis, values: Iterable[float], *, tight: bool = False) -> Scale:
    """Return the scale of `axis` for a plot with these values.

    The axis ends at labelled values. If `tight` is True, it ends at the outermost values instead.
    """
    if axis.names:
        return Scale(-0.6, len(axis.names) - 0.4, False, list(enumerate(axis.names)))
    shown = [value for value in map(float, values) if _is_shown(value, log=axis.log)]
    low, high = min(shown, default=1.0), max(shown, default=1.0)
    return _log(low, high, axis, tight) if axis.log else _linear(low, high, axis, tight)


def _is_shown(value: float, *, log: bool) -> bool:
    return (1 / _MOST if log else -_MOST) <= value <= _MOST


def _linear(low: float, high: float, axis: Axis, tight: bool) -> Scale:
    if axis.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    most = max(abs(low), abs(high))
    if high - low <= _FLAT * max(most, 1 / _MOST):  # one value: give it room on both sides
        beside = most / 10 if most > 1 / _MOST else 0.5
        top = 1.0 if axis.unit == "percent" and high <= 1 else math.inf
        low, high = low - beside, min(high + beside, top)
    whole = tight and float(low).is_integer() and float(high).is_integer()
    step = _step(high - low, divisor=_divisor(axis, most), least=1.0 if whole else 0.0)
    first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
    if tight:
        first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    else:
        low, high = first * step, last * step
    values = [n * step for n in range(first, last + 1)]
    return Scale(low, high, False, [(v, _label(v, axis, step, most)) for v in values])


def _log(low: float, high: float, axis: Axis, tight: bool) -> Scale:
    decades = math.log10(high) - math.log10(low)
    if decades <= _FLAT:
        low, high = low / 2, high * 2
    every = max(1, math.ceil(decades / (_LABELS + 1)))
    first, last = math.floor(math.log10(low) / every) * every, math.ceil(math.log10(high)) + every
    digits = (1, 2, 5) if decades < _FEW_DECADES else (1,)
    grid = [
        float(f"{digit}e{power}") for power in range(first, last + 1, every) for digit in digits
    ]
    if not tight:
        low = max(v for v in grid if v <= low * 1.000001)
        high = min(v for v in grid if v >= high / 1.000001)
    inside = [v for v in grid if low / 1.000001 <= v <= high * 1.000001]
    return Scale(low, high, True, [(v, _label(v, axis, v, v)) for v in inside])


def _step(extent: float, *, divisor: float, least: float) -> float:
    """Return the distance between two labels of an axis of length `extent`.

    The distance is a round number of units, and at least `least` units. A unit is `divisor`, such
    as 1e6 for MB.
    """
    rough = extent / _LABELS / divisor
    power = math.floor(math.log10(rough))
    for digit in (1, 2, 5, 10):
        step = digit * 10.0**power
        if step >= rough * 0.999:
            break
    return max(step, least) * divisor


def _divisor(axis: Axis, most: float) -> float:
    """Return the unit of the labels of `axis`, such as 1e6 for MB. `most` is the largest value."""
    if axis.unit != "bytes":
        return 1.0
    return max((size for _, size in UNITS if size <= most), default=1.0)


def _label(value: float, axis: Axis, step: float, most: float) -> str:
    if axis.unit == "percent":
        return f"{100 * value:.{_digits(100 * step)}f}%"
    divisor = _divisor(axis, most)
    number = _number(value / divisor, step / divisor)
    if axis.unit != "bytes":
        return number
    return f"{number} {next(name for name, size in UNITS if size == divisor)}" if value else "0"


def _number(value: float, step: float) -> str:
    if value and (abs(value) >= 1e7 or step < 1e-5):
        return f"{value:.4g}"
    return f"{value:,.{_digits(step)}f}"


def _digits(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0

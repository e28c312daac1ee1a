"""Turns noisy sums into estimates with confidence intervals, which cover noise and sampling.

The noise variance of the sums comes from the mechanism. For a ratio or a product of sums it follows
by the delta method: a function g of sums s with variances v has the variance Σ (∂g / ∂s)² v.

The sampling variance is computed from the noisy sums themselves, so it costs no further budget. For
a statistic of n independent rows, it is

    mean        at most (high - mean) (mean - low) / n  (Bhatia and Davis)
    variance    at most v ((1 + |m|)² - v) / n, for numbers x scaled to [-1, 1] with the mean m and
                the variance v: the same bound, for the squared distance from m
    correlation (1 - r²)² / n, which holds for normal numbers with the correlation r

A few equal rows must not give a sampling variance of 0. So each formula is corrected:

    mean        the mean is computed with 4 more rows in the middle of the range
    variance    m and v are computed with one more row, whose x is 0 and whose x² is 1/2
    correlation r is multiplied by n / (n + 4)

A count has another formula. If each of n clients contributes between 0 and `rows` rows, and μ rows
on average, the sampling variance is at most n μ (rows - μ). If the rows are independent, it is the
count itself. It is computed as if there were a few more clients (`count`).

Several rows of one client may be equal. So n rows of clients that contribute up to `rows` rows each
count as n / `rows` independent rows.

Under rr and oue, a mean, a variance and a correlation are functions of the shares of cells. Their
sampling variance follows by the delta method, as if the cells' counts were independent. This gives
the right result although counts with a fixed total are correlated: the shares do not change if all
counts are multiplied by the same number, so the covariances add up to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.base.lazy import special
from fedveil.statistics.answers import Estimate
from fedveil.statistics.encodings import Scaled

#: A ratio is not estimated if its denominator's noise is a larger share of the denominator.
_MOST_NOISE = 0.25
#: Rounding to 32-bit numbers can cause a variance below this in a scaled column.
_ROUNDING = 1e-6
#: Rounding of 64-bit numbers can cause a variance below this between equal numbers.
_ROUNDED = 1e-13


@dataclass(frozen=True)
class Sums:
    """All clients' sums for one part of a question, with the variances of their noise.

    - `values` is the sum of the reports, multiplied by `clients` / `asked`. Of all `clients`,
      `asked` reported, and the others are assumed to be like them.
    - `noise` has the variance of the noise in each entry of `values`.
    - `rows` is the largest number of rows that a client contributes.

    If the epsilon covers one row (`unit: row`), `rows` is None, and the sum of the reports is not
    multiplied. But under rr and oue, this is so only if all clients reported.
    """

    values: Float64s
    noise: Float64s
    asked: int
    clients: int
    rows: int | None = 1

    def at(self, where: slice) -> Sums:
        return Sums(self.values[where], self.noise[where], self.asked, self.clients, self.rows)

    @property
    def repeated(self) -> float:
        """The factor by which the sampling variance exceeds that of independent rows.

        It is the product of two numbers. `rows`, a client's largest number of rows (1 if None),
        allows for clients whose rows are all equal. `clients` / `asked` allows for the clients that
        did not report.
        """
        return (self.rows or 1) * self.clients / max(self.asked, 1)


def quantile_of_normal(confidence: float) -> float:
    """Return z such that a standard normal number is in [-z, z] with probability `confidence`."""
    return float(special().ndtri((1 + confidence) / 2))


def counts(sums: Sums, labels: Sequence[dict[str, str]], z: float) -> list[Estimate]:
    """Return the estimated number of rows in each cell. `labels` says what each entry counts.

    Negative estimates are kept, so that sums of estimates stay unbiased. An interval extends `z`
    standard deviations to each side.
    """
    return [
        count(float(value), float(noise), sums, label, z)
        for value, noise, label in zip(sums.values, sums.noise, labels, strict=True)
    ]


def count(value: float, noise: float, sums: Sums, label: dict[str, str], z: float) -> Estimate:
    """Return the estimated number of rows in one cell.

    `value` is the cell's sum, and `noise` the variance of its noise. The interval extends `z`
    standard deviations to each side. The sampling variance is computed as if the cell had z² more
    clients, so an empty cell has an interval too. `label` says what is estimated.
    """
    rows = sums.rows or 1
    most = float(sums.clients * rows) if sums.rows is not None else math.inf
    inside = min(max(value, 0.0), most)
    spread = inside if sums.rows is None else inside * (rows - inside / sums.clients)
    sampling = (spread + (z * rows) ** 2) * sums.clients / max(sums.asked, 1)
    reach = z * math.sqrt(noise + sampling)
    low, high = min(most, max(0.0, value - reach)), min(most, max(0.0, value + reach))
    return Estimate(label, value, low, high, math.sqrt(noise), math.sqrt(sampling))


class Shape(NamedTuple):
    """Functions that compute a statistic, such as a mean, from noisy sums.

    The argument of each function is the `values` of `Sums`.

    - `value` returns the statistic. Its possible range is `low` to `high`.
    - `spread` returns the sampling variance of the statistic, times the number of rows. It is None
      under rr and oue, where the sampling variance follows by the delta method.
    - `divisor` returns what `value` divides by, besides the number of rows. For a correlation, this
      is the product of two standard deviations. For most statistics, it is 1.
    """

    value: Callable[[Float64s], float]
    spread: Callable[[Float64s], float] | None
    low: float
    high: float
    divisor: Callable[[Float64s], float] = lambda s: 1.0


#: A statistic, and a function that returns the number of rows from the sums.
Statistic: TypeAlias = tuple[Shape, Callable[[Float64s], float]]


def ratio(
    sums: Sums, shape: Shape, present: Callable[[Float64s], float], label: dict[str, str], z: float
) -> Estimate:
    """Return the estimate of a statistic that divides by the number of rows, such as a mean.

    `shape` has the functions of the statistic. `present` returns the number of rows, given
    `sums.values`. The interval extends `z` standard deviations to each side. `label` says what is
    estimated.

    If the noise of a divisor (the number of rows or `shape.divisor`) is too large, the interval is
    the whole possible range, and the estimate its middle.
    """
    rows = present(sums.values)
    drawn = sums if shape.spread is not None else _with_sampling(sums)
    if not (_steady(present, sums) and _steady(shape.divisor, drawn)):
        middle, spread = (shape.low + shape.high) / 2, (shape.high - shape.low) / 2
        return Estimate(label, middle, shape.low, shape.high, spread, spread)
    value = min(max(shape.value(sums.values), shape.low), shape.high)
    noise = _through(shape.value, sums)
    if shape.spread is None:
        sampling = _through(shape.value, drawn) - noise
    else:
        sampling = max(0.0, shape.spread(sums.values)) * sums.repeated / rows
    reach = z * math.sqrt(noise + sampling)
    low, high = max(shape.low, value - reach), min(shape.high, value + reach)
    return Estimate(label, value, low, high, math.sqrt(noise), math.sqrt(sampling))


def _with_sampling(sums: Sums) -> Sums:
    both = sums.noise + np.maximum(sums.values, 0.0) * sums.repeated
    return Sums(sums.values, both, sums.asked, sums.clients, sums.rows)


def _steady(divisor: Callable[[Float64s], float], sums: Sums) -> bool:
    """Return True if `divisor(sums.values)` is above 0, and large compared with its noise."""
    size = divisor(sums.values)
    return size > 0 and math.sqrt(_through(divisor, sums)) <= _MOST_NOISE * size


def _through(function: Callable[[Float64s], float], sums: Sums) -> float:
    """Return the variance that the noise of `sums` causes in `function(sums.values)`.

    It is computed by the delta method.
    """
    total = 0.0
    for i, variance in enumerate(sums.noise):
        step = math.sqrt(variance) * 1e-3
        if step == 0:
            continue
        up, down = sums.values.copy(), sums.values.copy()
        up[i] += step
        down[i] -= step
        total += ((function(up) - function(down)) / (2 * step)) ** 2 * variance
    return total


def mean(column: Scaled) -> Statistic:
    """Return the functions that estimate a column's mean from the sums of (x, 1) over all rows.

    Here x is the column's number, scaled to [-1, 1].
    """

    def scaled(s: Float64s) -> float:
        return float(s[0] / s[1])

    def spread(s: Float64s) -> float:
        shrunk = float(s[0] / (s[1] + 4))  # a few equal rows prove little
        return column.half**2 * (1 - min(1.0, shrunk**2))

    shape = Shape(
        lambda s: column.middle + column.half * scaled(s), spread, column.low, column.high
    )
    return shape, lambda s: float(s[1])


def variance(column: Scaled) -> Statistic:
    """Return the functions that estimate a column's variance from the sums of (x, x² - 1, 1).

    The sums are over all rows. Here x is the column's number, scaled to [-1, 1].
    """

    def scaled(s: Float64s) -> float:
        found = float(1 + s[1] / s[2] - (s[0] / s[2]) ** 2)
        return 0.0 if abs(found) < _ROUNDED else found

    def spread(s: Float64s) -> float:
        more = np.add(s, (0.0, -0.5, 1.0))  # a few equal rows prove little
        inside = min(max(scaled(more), 0.0), 1.0)
        most = (1 + min(1.0, abs(more[0] / more[2]))) ** 2
        return float(column.half**4 * inside * (most - inside))

    shape = Shape(lambda s: column.half**2 * scaled(s), spread, 0.0, column.half**2)
    return shape, lambda s: float(s[2])


def correlation() -> Statistic:
    """Return the functions that estimate Pearson's correlation of two columns from their moments.

    The argument of the functions has the sums of (x, y, x² - 1, y² - 1, xy, 1) over all rows. Here
    x and y are the columns' numbers, scaled to [-1, 1].
    """

    def spreads(s: Float64s) -> float:
        n = s[5]
        x, y = 1 + s[2] / n - (s[0] / n) ** 2, 1 + s[3] / n - (s[1] / n) ** 2
        return math.sqrt(x * y) if min(x, y) > _ROUNDING else 0.0

    def value(s: Float64s) -> float:
        product = s[4] / s[5] - s[0] * s[1] / s[5] ** 2
        return float(product / spreads(s)) if spreads(s) else 0.0

    def spread(s: Float64s) -> float:
        shrunk = value(s) * s[5] / (s[5] + 4)  # one or two rows always have a correlation of 1
        return float((1 - min(1.0, shrunk**2)) ** 2)

    return Shape(value, spread, -1.0, 1.0, spreads), lambda s: float(s[5])


def from_ends(columns: Sequence[Scaled], *, squares: bool) -> Statistic:
    """Return the functions that estimate a statistic from the cell counts of the encoding `Ends`.

    For one column, the statistic is the mean or, if `squares` is True, the variance. For two, it is
    the correlation.
    """
    draws = 1 + squares
    sums = np.indices((draws + 1,) * len(columns)).reshape(len(columns), -1) * 2 - draws
    first = columns[0]

    def means(s: Float64s) -> Float64s:
        found: Float64s = sums @ s / (draws * s.sum())
        return found

    def variances(s: Float64s) -> Float64s:
        found: Float64s = (sums**2 / 2 - 1) @ s / s.sum() - means(s) ** 2
        return found

    def deviations(s: Float64s) -> float:
        both = variances(s)
        return math.sqrt(both.prod()) if (both > 0).all() else 0.0

    def related(s: Float64s) -> float:
        product = sums.prod(0) @ s / (draws**2 * s.sum()) - means(s).prod()
        both = deviations(s)
        return float(product / both) if both else 0.0

    def present(s: Float64s) -> float:
        return float(s.sum())

    if len(columns) == 2:
        return Shape(related, None, -1.0, 1.0, deviations), present
    if squares:
        most = first.half**2
        return Shape(lambda s: most * float(variances(s)[0]), None, 0.0, most), present
    return Shape(
        lambda s: first.middle + first.half * float(means(s)[0]), None, first.low, first.high
    ), present

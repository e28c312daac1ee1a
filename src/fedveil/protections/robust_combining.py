"""Ways to combine reports other than their sum, for a server that sees single reports.

    median        the median of the reports' values, entry by entry
    trimmed_mean  the mean, entry by entry, without a fraction of the largest and smallest values
    norm_bound    the mean of the reports, after shortening all whose L2 norm exceeds a bound

All are computed from the reports alone, so they cost no privacy. No result depends on the order of
the reports. A few lying clients can move the median and the trimmed mean by no more than the spread
of the other reports (Yin et al., 2018). They can move `norm_bound`'s mean at most by the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.protections.exact_sum import MAX_MAGNITUDE

Combination: TypeAlias = Literal["mean", "median", "trimmed_mean", "norm_bound"]
#: Entries, over all reports, that are sorted at once.
_ENTRIES = 1 << 20


class Sum(Protocol):
    """The interface of a running sum of reports."""

    def add(self, vector: npt.NDArray[Any], weight: int = 1) -> None: ...
    def merge(self, other: Any) -> None: ...

    def value(self, divisor: int = 1) -> npt.NDArray[np.float64]:
        """Return the sum divided by `divisor`. Call it once, at the end: it can change the sum."""


@dataclass(frozen=True)
class CombiningRule:
    """The way in which a job combines reports.

    `trim` is the fraction of values that "trimmed_mean" drops at each end. `norm_bound` is the L2
    norm to which "norm_bound" shortens reports.
    """

    kind: Combination = "mean"
    trim: float = 0.1
    norm_bound: float = 1.0

    def empty_sum(self, plain: Sum) -> Sum:
        """Return an empty running sum, which combines reports as `self.kind` says.

        `plain` is an empty running sum that only adds. The kinds "mean" and "norm_bound" use it.
        """
        if self.kind == "norm_bound":
            return BoundedSum(plain, self.norm_bound)
        if self.kind == "mean":
            return plain
        return MiddleSum(0.5 if self.kind == "median" else self.trim)


class BoundedSum:
    """A sum that shortens each report to the norm bound before adding it."""

    def __init__(self, plain: Sum, bound: float) -> None:
        self._plain, self._bound = plain, bound

    def add(self, vector: npt.NDArray[np.float32], weight: int = 1) -> None:
        wide = vector.astype(np.float64)
        norm = float(np.linalg.norm(wide))
        if norm > self._bound:
            if not math.isfinite(norm):
                raise ValueError("an entry is not finite or too large")
            # In float32, the factor of a very long report could be rounded up.
            wide *= self._bound / norm
            vector = wide.astype(np.float32)
        self._plain.add(vector, weight)

    def merge(self, other: BoundedSum) -> None:
        self._plain.merge(other._plain)

    def value(self, divisor: int = 1) -> npt.NDArray[np.float64]:
        return self._plain.value(divisor)


class MiddleSum:
    """Stores all reports, and returns the number of reports times their trimmed mean or median.

    The trimmed mean of an entry leaves out its largest and smallest values. The number of values
    left out at each end is the fraction `cut` of the reports, rounded up. If no value would remain,
    the median is used instead: the middle value, or the mean of the two middle values.
    """

    def __init__(self, cut: float) -> None:
        self._cut = cut
        self._rows: list[npt.NDArray[Any]] = []

    def add(self, vector: npt.NDArray[Any], weight: int = 1) -> None:
        """Add the report `vector`.

        Raises `ValueError`, and adds nothing, if an entry is NaN or too large, or if `weight` is
        not 1: all reports have equal weights.
        """
        if weight != 1:
            raise ValueError("reports count equally")
        if not max(vector.max(initial=0), -vector.min(initial=0)) <= MAX_MAGNITUDE:
            raise ValueError("an entry is not finite or too large")
        self._rows.append(vector.copy())

    def merge(self, other: MiddleSum) -> None:
        self._rows += other._rows

    def value(self, divisor: int = 1) -> npt.NDArray[np.float64]:
        count = len(self._rows)
        share = Fraction(repr(self._cut))  # exact decimal: 0.07 of 100 is 7
        out = min(math.ceil(share * count), (count - 1) // 2)
        total = np.empty(len(self._rows[0]))
        size = max(1, _ENTRIES // count)
        for start in range(0, len(total), size):
            part = np.stack([row[start : start + size] for row in self._rows]).astype(np.float64)
            part.sort(axis=0)
            total[start : start + size] = part[out : count - out].mean(axis=0)
        total *= count
        total /= divisor
        return total

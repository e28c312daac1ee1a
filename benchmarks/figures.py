"""The figures that a benchmark measures, and the limits that they must meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A measured figure called `work`, and the limit that it must meet: `at_most` or `at_least`."""

    work: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """True if the figure meets its limit or has none."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def __str__(self) -> str:
        floor = ""
        if self.at_most is not None:
            floor = f"at most {self.at_most:g}"
        elif self.at_least is not None:
            floor = f"at least {self.at_least:g}"
        verdict = f"{floor}: {'kept' if self.holds else 'MISSED'}" if floor else ""
        return f"{self.work:<58} {self.value:>12,.3f} {self.unit:<8} {verdict}"


def best_s(
    work: Callable[[], Any], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of the fastest run. One extra run before compiles and warms the caches."""
    work()
    seconds = []
    for _ in range(repeats):
        began = clock()
        work()
        seconds.append(clock() - began)
    return min(seconds)


def show(figures: Iterable[Figure]) -> int:
    """Print each figure as soon as it is measured. Returns 1 if any misses its limit, else 0."""
    missed = False
    for figure in figures:
        print(figure, flush=True)
        missed |= not figure.holds
    return int(missed)

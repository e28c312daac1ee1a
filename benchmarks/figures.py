"""What a benchmark shows: a figure, the floor it must keep, and whether it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured figure and the floor that it must keep: `at_most`, or `at_least` for ratios."""

    work: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the floor, if there is one, is kept."""
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
    """Seconds by `clock` of the fastest run; one more before it compiles and warms the caches."""
    work()
    seconds = []
    for _ in range(repeats):
        began = clock()
        work()
        seconds.append(clock() - began)
    return min(seconds)


def show(figures: Iterable[Figure]) -> int:
    """Print them as they come; 1, the exit status, where a floor is missed."""
    missed = False
    for figure in figures:
        print(figure, flush=True)
        missed |= not figure.holds
    return int(missed)

"""What an attack found, as data: a run's record, a comparison and a page read the same figures.

An attack that recovers nothing has shown nothing but that: no finding calls a protection safe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedveil._validate import choice
from fedveil.errors import InvalidValue

#: How much work an attack may do, and how many cases it is tried on.
EFFORTS = ("quick", "standard", "full")
#: How the name of a lower bound on epsilon begins.
BOUND = "epsilon at least"
#: The confidence of every interval.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Measured:
    """One figure of merit: `low` to `high` is its interval at 95%, `guess` what guessing reaches.

    `cases` is how many cases it was measured on. A figure without an interval has NaN there, and
    one that guessing says nothing of has it in `guess`.
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    guess: float = math.nan
    cases: int = 1

    def __str__(self) -> str:
        text = f"{self.name} {self.value:.3g}"
        if not math.isnan(self.low):
            text += f" [{self.low:.3g}, {self.high:.3g}]"
        return text if math.isnan(self.guess) else f"{text}, guessing {self.guess:.3g}"


@dataclass(frozen=True)
class Finding:
    """This attack, at this effort, against this protection with these settings, reached that.

    `epsilon` and `delta` are what the ledger states for what the attacker saw, epsilon infinite
    where nothing is promised. `pictures` are files beside the record.
    """

    attack: str
    effort: str
    protection: str
    figures: Sequence[Measured]
    settings: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float = math.inf
    delta: float = 0.0
    saw: str = ""
    seconds: float = math.nan
    pictures: Sequence[str] = ()

    def __post_init__(self) -> None:
        choice("effort", self.effort, EFFORTS)

    @property
    def bound(self) -> float | None:
        """The largest lower bound on epsilon; None where it has none."""
        bounds = [figure.value for figure in self.figures if figure.name.startswith(BOUND)]
        return max(bounds, default=None)

    @property
    def refutes(self) -> bool:
        """Whether a lower bound on epsilon is above what the ledger states."""
        return self.bound is not None and self.bound > self.epsilon

    @property
    def distance(self) -> str:
        """In words, how far what the ledger states is from the largest bound; else nothing."""
        if self.bound is None or math.isinf(self.epsilon):
            return ""
        side = "below" if self.refutes else "above"
        return f", {abs(self.epsilon - self.bound):.4g} {side} the largest bound"

    @property
    def verdict(self) -> str:
        """The same in words, beside what was promised."""
        return "NOT WHAT WAS PROMISED" if self.refutes else "not refuted"

    def figure(self, name: str) -> Measured:
        """The figure of that name."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise InvalidValue(f"there is no figure {name} in a finding of {self.attack}")

    def __str__(self) -> str:
        found = "; ".join(map(str, self.figures))
        return f"{self.attack} at effort {self.effort} against {self.protection} reached {found}"


def timed(attack: Callable[[], Finding]) -> Finding:
    """What an attack finds, with the seconds that it took."""
    began = time.perf_counter()
    found = attack()
    return replace(found, seconds=time.perf_counter() - began)

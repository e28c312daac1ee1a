"""What one release costs, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from fedveil._validate import within
from fedveil.errors import InvalidValue

Per = Literal["bit", "parameter", "row", "vector", "example", "update"]
Neighbours = Literal["replace"]


@dataclass(frozen=True)
class PrivacyLoss:
    """An (epsilon, delta) differential-privacy statement about one release.

    For any two inputs that differ in one whole `per` (in all of it: replace-one), and any set of
    outputs S, Pr[S | input] <= e^epsilon Pr[S | other input] + delta. `epsilon` is infinite
    where nothing is promised.
    """

    epsilon: float
    delta: float = 0.0
    per: Per = "update"
    neighbours: Neighbours = "replace"

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise InvalidValue(f"epsilon = {self.epsilon!r} is outside [0, inf]")
        within("delta", self.delta, 0, 1)
        if self.per not in get_args(Per):
            raise InvalidValue(f"per = {self.per!r} is not one of {', '.join(get_args(Per))}")
        if self.neighbours not in get_args(Neighbours):
            raise InvalidValue(f"neighbours = {self.neighbours!r} is not 'replace'")

    @property
    def pure(self) -> bool:
        """Whether the statement holds with delta = 0."""
        return self.delta == 0.0

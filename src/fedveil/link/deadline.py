"""A time by which a peer must have done something."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from fedveil.errors import LinkLost


@dataclass(frozen=True)
class Deadline:
    """The time (`time.monotonic`) by which a peer must have done `what`."""

    at: float
    what: str = ""

    def left(self, peer: str) -> float:
        """Return the seconds until the deadline. Raises `LinkLost` if it has passed."""
        if (left := self.at - time.monotonic()) <= 0:
            raise LinkLost(f"{peer} has not {self.what}")
        return left


NO_DEADLINE = Deadline(math.inf)

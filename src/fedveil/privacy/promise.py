"""What an (epsilon, delta) promises, in a word.

The words go by the best attacker that the statement allows: one who knows everything but which of
two inputs was used, holds both to be equally likely, sees what was released, and guesses. No
attacker is right more often than

    (e^epsilon + delta) / (1 + e^epsilon),

and against the worst mechanism of that statement one is (Kairouz, Oh and Viswanath, 2015).

`MEANS` says where each word begins. An average over releases hides that with probability delta
everything may be told. So a delta above 1/1,000 is next to none, whatever epsilon is.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

from fedveil.privacy.loss import format_delta, format_epsilon

Promise: TypeAlias = Literal["strong", "meaningful", "weak", "next to none", "none"]

#: What each word says of the best attacker, and why it begins there.
MEANS: dict[Promise, str] = {
    "strong": "right at most 3 times in 4: nearer to a coin's toss than to knowing",
    "meaningful": "wrong once in 20 or more often: no usual standard of evidence is met",
    "weak": "wrong once in 1,000 or more often: a doubt that nobody should count on",
    "next to none": "wrong less often than once in 1,000, or all may be told as often as that",
    "none": "never wrong: epsilon is infinite, or delta is 1",
}
#: How often the best attacker is wrong, at least, for a promise to have the name.
_WRONG: tuple[tuple[float, Promise], ...] = (
    (1 / 4, "strong"),
    (1 / 20, "meaningful"),
    (1 / 1000, "weak"),
)
#: The largest delta that any of them may have.
_MOST_TOLD = 1 / 1000


def attacker_wrong(epsilon: float, delta: float = 0.0) -> float:
    """How often the best attacker is wrong from even odds: (1 - delta) / (1 + e^epsilon)."""
    return (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))


def promise(epsilon: float, delta: float = 0.0) -> Promise:
    """The word for what (epsilon, delta) promises."""
    if math.isinf(epsilon) or delta >= 1:
        return "none"
    wrong = attacker_wrong(epsilon, delta)
    names = (name for least, name in _WRONG if wrong >= least and delta <= _MOST_TOLD)
    return next(names, "next to none")


def told(epsilon: float, delta: float = 0.0) -> str:
    """An epsilon and its word, where delta is said elsewhere."""
    return f"{format_epsilon(epsilon)} ({promise(epsilon, delta)})"


class Figure(NamedTuple):
    """(epsilon, delta)-differential privacy, as it is told: with what it promises."""

    epsilon: float
    delta: float

    @property
    def promise(self) -> Promise:
        """The word for it."""
        return promise(self.epsilon, self.delta)

    @property
    def thin(self) -> bool:
        """Whether that is next to none, or none."""
        return self.promise in ("next to none", "none")

    def __str__(self) -> str:
        epsilon, delta = format_epsilon(self.epsilon), format_delta(self.delta)
        return f"epsilon {epsilon} at delta {delta} ({self.promise})"

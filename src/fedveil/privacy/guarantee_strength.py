"""Words for the strength of an (epsilon, delta) guarantee, from "strong" to "none".

Each word describes the best possible attacker. This attacker knows everything except which of two
equally likely inputs was used. Its guess is right with probability at most

    (e^epsilon + delta) / (1 + e^epsilon)     (Kairouz, Oh and Viswanath, 2015).

With probability delta everything may be revealed. So if delta is above 1/1,000, the word is at best
"next to none", however small epsilon is.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

from fedveil.privacy.loss import format_delta, format_epsilon

Promise: TypeAlias = Literal["strong", "meaningful", "weak", "next to none", "none"]

#: The best attacker's success under each word, and the reason for its limit.
MEANS: dict[Promise, str] = {
    "strong": "right at most 75% of the time: nearer to a coin's toss than to knowing",
    "meaningful": "right at most 95% of the time: no usual standard of evidence is met",
    "weak": "right at most 99.9% of the time: a doubt that nobody should count on",
    "next to none": "possibly right more than 99.9% of the time, or delta is above 0.1%",
    "none": "possibly always right: epsilon is infinite, or delta is 1",
}
#: The best attacker's least error probability for each word.
_WRONG: tuple[tuple[float, Promise], ...] = (
    (1 / 4, "strong"),
    (1 / 20, "meaningful"),
    (1 / 1000, "weak"),
)
#: The largest delta that any of these words may have.
_MOST_TOLD = 1 / 1000


def attacker_wrong(epsilon: float, delta: float = 0.0) -> float:
    """Return the probability that the best attacker errs about which of two inputs was used.

    The probability is (1 - delta) / (1 + e^epsilon). Both inputs are equally likely.

        >>> from fedveil.privacy import attacker_wrong
        >>> round(attacker_wrong(2.0, 1e-5), 4)
        0.1192
    """
    return (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))


def promise(epsilon: float, delta: float = 0.0) -> Promise:
    """Return a word for the strength of the guarantee (epsilon, delta), such as "meaningful".

    >>> from fedveil.privacy import promise
    >>> promise(0.9), promise(0.9, delta=0.01)
    ('strong', 'next to none')
    """
    if math.isinf(epsilon) or delta >= 1:
        return "none"
    wrong = attacker_wrong(epsilon, delta)
    names = (name for least, name in _WRONG if wrong >= least and delta <= _MOST_TOLD)
    return next(names, "next to none")


def epsilon_text(epsilon: float, delta: float = 0.0) -> str:
    """Format an epsilon with a word for its strength (see `promise`), such as "1.89 (meaningful)".

    `delta` affects the word but is not shown.

        >>> from fedveil.privacy import epsilon_text
        >>> epsilon_text(2.5, 1e-5)
        '2.5 (meaningful)'
    """
    return f"{format_epsilon(epsilon)} ({promise(epsilon, delta)})"


class Figure(NamedTuple):
    """An (epsilon, delta) guarantee of differential privacy.

    As a string, it includes a word for its strength (see `promise`).

        >>> from fedveil.privacy import Figure
        >>> print(Figure(1.886491, 1e-5))
        epsilon 1.89 at delta 1e-05 (meaningful)
    """

    epsilon: float
    delta: float

    @property
    def promise(self) -> Promise:
        """Return a word for the strength of this guarantee, such as "meaningful"."""
        return promise(self.epsilon, self.delta)

    @property
    def thin(self) -> bool:
        """Return True if this guarantee is so weak that `promise` is "next to none" or "none"."""
        return self.promise in ("next to none", "none")

    def __str__(self) -> str:
        epsilon, delta = format_epsilon(self.epsilon), format_delta(self.delta)
        return f"epsilon {epsilon} at delta {delta} ({self.promise})"

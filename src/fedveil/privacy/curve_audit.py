"""A lower bound on epsilon from how often an attacker guesses which of two inputs was used.

If a release has the privacy curve delta(eps), every attacker is right with probability at most (1 +
delta(0)) / 2. A curve is refuted if a lower bound on the attacker's true probability (Clopper and
Pearson) is above this value. The audit tests a family of curves, such as those of Gaussian noise of
every size, and returns the largest epsilon of a refuted curve. If the release has a curve of the
family, the result is above its true epsilon with probability at most 1 - confidence. Sources: Dong,
Roth and Su (2022), and Mahloujifar, Melis and Chaudhuri (2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedveil.base.lazy import special
from fedveil.base.validate import integer, within
from fedveil.errors import InvalidValue
from fedveil.privacy.compose import Charge, compose

#: The least factor of the search. The largest is its inverse, and the claimed member has factor 1.
_LEAST = 2.0**-10
#: Relative accuracy of the factor, which is rounded down.
_NEAR = 1e-3
#: Maps a factor to the charges of a member of the family. A larger factor costs more. Raises
#: `ValueError` if there is no member with this factor.
Family = Callable[[float], Sequence[Charge]]


def least_advantage(right: int, guesses: int, confidence: float) -> float:
    """Return a lower bound on 2 p - 1, where p is the probability that a guess is right.

    2 p - 1 is the advantage over blind guessing. `right` of `guesses` guesses were right. The bound
    is wrong with probability at most 1 - `confidence`.
    """
    guesses, right = integer("guesses", guesses, 1), integer("right", right, 0, guesses)
    error = 1 - within("confidence", confidence, 0, 1, open_low=True, open_high=True)
    least = float(special().betaincinv(right, guesses - right + 1, error)) if right else 0.0
    return max(0.0, 2 * least - 1)


def curve_bound(
    right: int, guesses: int, family: Family, *, delta: float, confidence: float
) -> float:
    """Return a lower bound on epsilon at `delta`, from guesses about which of two inputs was used.

    `right` of `guesses` independent guesses were right. Each input was used in half of them.
    `family(factor)` returns the charges of a hypothetical release: pairs of a loss and its number
    of releases. A larger factor gives larger losses, and `family(1)` returns the claimed charges.
    The result is the epsilon of the largest refuted factor, or 0. It is above the true epsilon with
    probability at most 1 - `confidence`, if the release has the privacy curve delta(eps) of the
    charges `family(factor)` for some factor.

        >>> from fedveil.privacy import Gaussian, PrivacyLoss
        >>> from fedveil.privacy.curve_audit import curve_bound
        >>> def noise(factor: float) -> list[tuple[PrivacyLoss, int]]:
        ...     return [(PrivacyLoss.of_release(Gaussian(3.7 / factor), "update"), 1)]
        >>> bound = curve_bound(11_060, 20_000, noise, delta=1e-5, confidence=0.95)
        >>> 0.85 < bound < 1.01  # of 1.01 claimed
        True
    """
    advantage = least_advantage(right, guesses, confidence)
    if not advantage:
        return 0.0

    def refuted(factor: float) -> bool:
        # If the epsilon at delta = `advantage` is 0, delta(0) is at most `advantage`.
        try:
            return compose(family(factor), advantage) == 0.0
        except (InvalidValue, ValueError):  # no member: more noise than can be drawn, or less
            return factor < 1

    low, high = _LEAST, 1 / _LEAST
    if not refuted(low):
        return 0.0
    while high > low * (1 + _NEAR):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    try:
        return compose(family(low), delta)
    except (InvalidValue, ValueError):  # the cheapest member is not refuted
        return 0.0

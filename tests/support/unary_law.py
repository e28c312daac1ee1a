"""The law of S, the sum of a perturbed one-hot code's states, computed from its definition."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction


def enumerated_sum_law(p: Fraction, q: Fraction, cells: int, state: int) -> dict[int, Fraction]:
    """Return Pr[S | state], by enumerating every code."""
    states = range(-cells, cells + 1)
    law: Counter[int] = Counter()
    for bits in itertools.product((0, 1), repeat=2 * cells + 1):
        chances = [p if v == state else q for v in states]
        mass = math.prod(
            (c if bit else 1 - c for c, bit in zip(chances, bits, strict=True)), start=Fraction(1)
        )
        law[sum(v for v, bit in zip(states, bits, strict=True) if bit)] += mass
    return dict(law)

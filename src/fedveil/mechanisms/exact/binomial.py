"""Exact binomial draws: the number of ones among n independent bits."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Int16s, Int64s
from fedveil.entropy import Entropy
from fedveil.mechanisms.exact.alias_table import AliasTables

_Counts = Int64s

#: More trials are drawn in pieces: the exact remainder of a table would become too large.
_MAX_TRIALS = 1 << 11


class Binomial:
    """Draws exactly from the binomial distribution: a trial gives 1 with `probability`."""

    def __init__(self, probability: Fraction) -> None:
        self._probability = probability

    def draw(self, trials: int, count: int, entropy: Entropy) -> _Counts:
        """Return `count` independent draws: each the number of ones among `trials` bits."""
        total = np.zeros(count, np.int64)
        for piece in _pieces(trials):
            total += self._table_draw(piece, count, entropy)
        return total

    def draw_each(self, trials: npt.NDArray[np.integer[Any]], entropy: Entropy) -> _Counts:
        """Return one draw for each entry n of `trials`: the number of ones among n random bits."""
        total = np.zeros(len(trials), np.int64)
        power = 1
        while power <= trials.max(initial=0):
            chosen = np.flatnonzero(trials & power)
            for piece in _pieces(power):
                total[chosen] += self._table_draw(piece, len(chosen), entropy)
            power *= 2
        return total

    def _table_draw(self, trials: int, count: int, entropy: Entropy) -> Int16s:
        out = np.empty(count, np.int16)
        _table(self._probability, trials).draw_from(0, entropy, out)
        return out


def _pieces(trials: int) -> list[int]:
    whole, rest = divmod(trials, _MAX_TRIALS)
    return [_MAX_TRIALS] * whole + [rest] * (rest > 0)


@lru_cache(maxsize=64)
def _table(probability: Fraction, trials: int) -> AliasTables:
    law = np.array(_law(probability, trials))
    return AliasTables(law[np.newaxis], exact=lambda row: _exact_law(probability, trials))


def _law(probability: Fraction, trials: int) -> list[float]:
    """Return Pr[x of `trials` bits are 1] for x = 0..trials, as floats.

    A bit is 1 with `probability`. The results are computed with 40 digits, so that no intermediate
    result underflows.
    """
    with localcontext(prec=40):
        one = Decimal(probability.numerator) / Decimal(probability.denominator)
        zero = Decimal((1 - probability).numerator) / Decimal(probability.denominator)
        odds = one / zero
        law = accumulate(
            range(trials),
            lambda mass, k: mass * (trials - k) / (k + 1) * odds,
            initial=zero**trials,
        )
        return [float(mass) for mass in law]


def _exact_law(probability: Fraction, trials: int) -> list[int]:
    one = probability.numerator
    zero = probability.denominator - one
    return list(
        accumulate(
            range(trials),
            # C(n, k + 1) one^(k + 1) zero^(n - k - 1) from the weight of k. The division is exact.
            lambda mass, k: mass * (trials - k) * one // ((k + 1) * zero),
            initial=zero**trials,
        )
    )

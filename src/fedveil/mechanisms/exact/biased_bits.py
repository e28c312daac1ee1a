"""Independent bits that are 1 with a given probability, drawn eight at a time."""

from __future__ import annotations

import math
from decimal import ROUND_UP, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np

from fedveil.mechanisms.exact.alias_table import AliasTables
from fedveil.privacy.loss import as_written


@lru_cache(maxsize=16)
def byte_tables(probability: Fraction) -> AliasTables:
    """Return a table whose draws are bytes of eight independent bits, each 1 with `probability`.

    It has one distribution, number 0. Its symbols are the bytes, 0 to 255.
    """
    law = np.ones(1)
    for _ in range(8):
        law = np.concatenate([float(1 - probability) * law, float(probability) * law])
    ones, all_ = probability.as_integer_ratio()
    exact_law = [ones ** k.bit_count() * (all_ - ones) ** (8 - k.bit_count()) for k in range(256)]
    return AliasTables(law[np.newaxis], exact=lambda row: exact_law)


def double_above_q(eps: float, bits: int = 1) -> float:
    """Return q = 1 / (e^(eps / bits) + 1), rounded up, so that `bits` bits cost at most eps.

    The cost of a bit is ln((1 - q) / q). The float `eps` stands for the shortest decimal that
    identifies it, so 0.1 is exactly 1/10.
    """
    # Half a float can stand for more than half of its decimal. So the decimal is divided.
    with localcontext(prec=60, rounding=ROUND_UP):
        q = 1 / ((as_written(eps) / bits).exp() + 1) * (1 + Decimal("1e-55"))
        result = float(q)
        while Decimal(result) < q:
            result = math.nextafter(result, 1.0)
        return result

"""Draws the sum of a perturbed one-hot code from its distribution.

A state is a parameter's value, rounded to a whole number from -cells to cells. In a one-hot code of
state v0, bit v is 1 with probability p if v = v0, and otherwise with probability q, all
independently. The sum S of the code adds up the states whose bits are 1: S = Σ v * bit v over v =
-cells..cells. Its distribution is

    Pr[S | v0] = the coefficient of x^S in
                 Π_{v != v0} ((1 - q) + q x^v) · ((1 - p) + p x^v0).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.mechanisms.exact.alias_table import AliasTables

_Law = Float64s
#: The probabilities that a bit is 0, and that it is 1.
_Chances = tuple[float, float]

#: Tables hold (2 cells + 1) * (cells (cells + 1) + 1) probabilities: 33 MB at 127 cells.
MAX_TABLE_CELLS = 127


def largest_sum(cells: int) -> int:
    """Return the largest possible sum of a code, cells (cells + 1) / 2.

    A code has one bit for each state, a whole number from -cells to cells. Its sum adds up the
    states whose bits are 1, and is largest if these are the positive states: 1 + 2 + ... + cells.
    """
    return cells * (cells + 1) // 2


@lru_cache(maxsize=4)
def sum_tables(p: Fraction, q: Fraction, cells: int) -> AliasTables:
    """Return alias tables that draw the sum of a parameter's perturbed code by one look-up.

    A parameter's state is its value, rounded to a whole number from -cells to cells. There is one
    table for each state. The code has one bit for each state. The bit of the parameter's own state
    is 1 with probability p, any other bit with probability q. The sum adds up the states whose bits
    are 1.
    """
    return AliasTables(
        sum_laws(p, q, cells),
        exact=lambda row: exact_sum_law(p, q, cells, row - cells),
        first_row=-cells,
        first_symbol=-largest_sum(cells),
    )


def sum_laws(p: Fraction, q: Fraction, cells: int) -> _Law:
    """Return the distribution of the sum of a perturbed code, for each state of the parameter.

    A parameter's state is its value, rounded to a whole number from -cells to cells. The code has
    one bit for each state. The bit of the parameter's own state is 1 with probability p, any other
    bit with probability q. The sum adds up the states whose bits are 1. The result has one row for
    each state, and one column for each possible sum. The relative error of every entry that does
    not underflow is below 2^-40.
    """
    # Only sums of products of positive numbers occur, with at most 3 roundings for each of up to
    # 255 states: 765 * 2^-53 < 2^-43.
    largest = largest_sum(cells)
    laws = np.empty((2 * cells + 1, 2 * largest + 1))
    law = np.zeros(2 * largest + 1)
    law[largest] = 1.0
    own, other = _chances(p), _chances(q)
    for v in range(-cells, 0):
        law = _with_bit(law, other, v)
    _add_missing_bits(laws[cells:], law, own, other, 0, cells + 1)
    laws[:cells] = laws[:cells:-1, ::-1]  # the law of -S given -v0 is the law of S given v0
    return laws


def sum_law(p: Fraction, q: Fraction, cells: int, state: int) -> _Law:
    """Return the distribution of the sum of a perturbed code, for a parameter in `state`.

    A parameter's state is its value, rounded to a whole number from -cells to cells. The code has
    one bit for each state. The bit of `state` is 1 with probability p, any other bit with
    probability q. The sum adds up the states whose bits are 1. The result has an entry for each
    possible sum. The relative error of every entry that does not underflow is below 3 (2 cells + 1)
    2^-53.
    """
    largest = largest_sum(cells)
    law = np.zeros(2 * largest + 1)
    law[largest] = 1.0
    own, other = _chances(p), _chances(q)
    for v in range(-cells, cells + 1):
        law = _with_bit(law, own if v == state else other, v)
    return law


def _add_missing_bits(laws: _Law, law: _Law, p: _Chances, q: _Chances, low: int, high: int) -> None:
    """Add the missing bits to `law`, and write the result for each state to rows of `laws`.

    `law` is the distribution of a sum of the states whose bits are 1 in a perturbed one-hot code.
    It lacks the bits of the states `low` to `high` - 1. In row v of the result, for a parameter in
    state v, bit v has the probabilities `p`, and every other missing bit has the probabilities `q`.
    Each is a pair: the probability of a 0 and that of a 1. Fills the rows `low` to `high` - 1.
    """
    # Halving the range leaves out each state's own bit in log2(cells) steps. Dividing it out of the
    # whole product would lose the small probabilities to cancellation.
    if high - low == 1:
        laws[low] = _with_bit(law, p, low)
        return
    middle = (low + high) // 2
    for own, others in (((low, middle), (middle, high)), ((middle, high), (low, middle))):
        part = law
        for v in range(*others):
            part = _with_bit(part, q, v)
        _add_missing_bits(laws, part, p, q, *own)


def _chances(probability: Fraction) -> _Chances:
    """Return the probabilities that a bit is 0 and that it is 1, given the latter as a fraction.

    Each is rounded to a float from its exact value, so that a small probability does not become 0.
    """
    return float(1 - probability), float(probability)


def _with_bit(law: _Law, chances: _Chances, v: int) -> _Law:
    """Return the distribution of X + v B, where X has the distribution `law`, and B is a bit.

    `chances` are the probabilities that B is 0 and that B is 1.
    """
    zero, one = chances
    out = zero * law
    if v > 0:
        out[v:] += one * law[:-v]
    elif v < 0:
        out[:v] += one * law[-v:]
    else:
        out += one * law
    return out


def exact_sum_law(p: Fraction, q: Fraction, cells: int, state: int) -> list[int]:
    """Return the exact distribution of the sum of a perturbed code, as integer weights.

    There is one weight for each possible sum, from the smallest to the largest. Divided by the sum
    of all weights, it is the probability of that sum.

    A parameter's state is its value, rounded to a whole number from -cells to cells. The code has
    one bit for each state. The bit of `state`, the parameter's own, is 1 with probability p, any
    other bit with probability q. The sum adds up the states whose bits are 1.
    """
    largest = largest_sum(cells)
    law = [0] * (2 * largest + 1)
    law[largest] = 1
    for v in range(-cells, cells + 1):
        one, both = (p if v == state else q).as_integer_ratio()
        shifted = [0] * v + law[: len(law) - v] if v >= 0 else law[-v:] + [0] * -v
        law = [(both - one) * a + one * b for a, b in zip(law, shifted, strict=True)]
    return law

"""Draws the sums of perturbed one-hot codes from the bits that are flipped in them.

A parameter's state is a whole number from -cells to cells. Its one-hot code has one bit for each
possible state. The sum of the code adds up the states whose bits are 1. The protection rr flips
each bit independently with probability q. oue does the same, except that the bit of the parameter's
own state becomes a fair coin. The sampler jumps from one flipped bit to the next:

    Pr[g unflipped bits before the next flipped one] = (1 - q)^g q

It needs one draw for each flipped bit, so it is fast if bits are rarely flipped.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float64s, Int16s, Int32s, Int64s, Uint8s
from fedveil.base.kernels import compiled
from fedveil.entropy import Entropy
from fedveil.mechanisms.exact.alias_table import AliasTables
from fedveil.mechanisms.unary.rounding import States

#: Up to this many expected flips per code, this is faster than a table for each state.
MAX_LIES = 2.0
#: After this many unflipped bits the count starts again, because a geometric distribution has no
#: memory. The table, with its remainder, has 512 columns of 4 bytes.
_LONGEST_GAP = 510
#: Gaps drawn at a time: 128 KiB of keystream.
_BLOCK = 1 << 15
#: Flipped bits that one loop passes to the next: few enough for the cache.
_SOME = 512

_Sums = npt.NDArray[np.signedinteger[Any]]


class PerturbedSums:
    """Draws, for each parameter, the sum of the states whose bits are 1 in its perturbed code.

    A parameter's state is a whole number from -cells to cells. Its one-hot code has one bit for
    each possible state, and only the bit of the parameter's own state is 1. Perturbing the code
    changes bits at random. A bit that is 1 stays 1 with probability `p`, which is 1 - q (rr) or 1/2
    (oue). A bit that is 0 becomes 1 with probability `q`.
    """

    def __init__(self, p: Fraction, q: Fraction, cells: int) -> None:
        self._cells = cells
        self._own_lies = p == 1 - q
        self._gaps = AliasTables(gap_law(q), exact=lambda row: exact_gap_law(q))
        self._draws_a_bit = float(q) + 1 / _LONGEST_GAP

    def draw(self, states: States, entropy: Entropy, sums: _Sums) -> None:
        """Write a draw for each parameter to `sums`: the sum of its perturbed one-hot code.

        Parameter i has the state states[i], a whole number. Its perturbed code has a bit for each
        possible state. sums[i] adds up the states whose bits are 1.
        """
        if self._own_lies:
            sums[:] = states
        else:
            coins = np.empty(len(states), np.uint8)
            entropy.fill(coins)
            _toss(states, coins, sums)
        end, place = len(states) * (2 * self._cells + 1), 0
        own = -1 if self._own_lies else 0
        while place < end:
            gaps = np.empty(min(int((end - place) * self._draws_a_bit) + 8, _BLOCK), np.int16)
            self._gaps.draw_from(0, entropy, gaps)
            place = _add_lies(gaps, place, states, self._cells, own, sums)


def gap_law(q: Fraction) -> Float64s:
    """Return Pr[g unflipped bits before the next flipped bit] for g = 0, 1, ..., as one row.

    A bit is flipped with probability `q`. The last entry is for 510 unflipped bits or more. The
    relative error is at most 2^-43.
    """
    true, lie = 1.0 - float(q), float(q)
    law = np.array([true**gap * lie for gap in range(_LONGEST_GAP)] + [true**_LONGEST_GAP])
    return law[np.newaxis]


def exact_gap_law(q: Fraction) -> list[int]:
    """Return the probabilities of `gap_law` exactly, as integer weights.

    Weight g is for g unflipped bits before the next flipped bit. The last weight is for 510 or
    more. A bit is flipped with probability `q`.
    """
    lie, both = q.as_integer_ratio()
    true = both - lie
    law = [true**gap * lie * both ** (_LONGEST_GAP - 1 - gap) for gap in range(_LONGEST_GAP)]
    return [*law, true**_LONGEST_GAP]


def _toss_numpy(states: States, coins: Uint8s, sums: _Sums) -> None:
    sums[:] = states * (coins & 1)


@compiled(_toss_numpy)
def _toss(states: States, coins: Uint8s, sums: _Sums) -> None:
    """Set sums[i] to the state of parameter i if the lowest bit of coins[i] is 1, else to 0."""
    for i in range(len(states)):
        sums[i] = states[i] * np.int16(coins[i] & np.uint8(1))


def _add_lies_numpy(
    gaps: Int16s, place: int, states: States, cells: int, own: int, sums: _Sums
) -> int:
    lies = gaps != _LONGEST_GAP
    behind = place + np.cumsum(gaps.astype(np.int64) + lies)
    parameters, bits = np.divmod((behind - 1)[lies], 2 * cells + 1)
    inside = parameters < len(states)
    at, lying = parameters[inside], bits[inside] - cells
    np.add.at(sums, at, np.where(lying == states[at], own * lying, lying).astype(sums.dtype))
    return int(behind[-1])


@compiled(_add_lies_numpy)
def _add_lies(gaps: Int16s, place: int, states: States, cells: int, own: int, sums: _Sums) -> int:
    places, parameters, lying = (
        np.empty(_SOME, np.int64), np.empty(_SOME, np.int32), np.empty(_SOME, np.int32)
    )  # fmt: skip
    end = len(states) * (2 * cells + 1)
    for start in range(0, len(gaps), _SOME):
        count, place = _next_lies(gaps[start : start + _SOME], place, places)
        while count and places[count - 1] >= end:
            count -= 1
        _name(places[:count], cells, parameters, lying)
        _add_named(parameters[:count], lying, states, own, sums)
    return place


@compiled()
def _next_lies(gaps: Int16s, place: int, places: Int64s) -> tuple[int, int]:
    count = 0
    for k in range(len(gaps)):
        place += gaps[k]
        places[count] = place
        lie = int(gaps[k] != _LONGEST_GAP)
        count += lie
        place += lie
    return count, place


@compiled()
def _name(places: Int64s, cells: int, parameters: Int32s, lying: Int32s) -> None:
    """Write the parameter and the state of the bit at position places[k], for each k.

    Positions count the bits of all parameters' codes, one code after another. A code has a bit for
    each state -`cells`..`cells`. parameters[k] becomes the index of the parameter to which the bit
    belongs, and lying[k] the state that the bit stands for.
    """
    states = 2 * cells + 1
    for k in range(len(places)):
        parameters[k] = np.int32((places[k] + 0.5) * (1.0 / states))
        lying[k] = np.int32(places[k] - np.int64(parameters[k]) * states - cells)


@compiled()
def _add_named(parameters: Int32s, lying: Int32s, states: States, own: int, sums: _Sums) -> None:
    for k in range(len(parameters)):
        at, state = np.uint64(parameters[k]), lying[k]
        sums[at] += state if state != states[at] else own * state

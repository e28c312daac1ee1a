"""The random choices in a report of `UnaryEncoding`, for an audit that knows the true values.

A parameter's state is its value, rounded to a whole number from -cells to cells. Its one-hot code
has one bit for each state. A choice is one randomised number of the report: a bit of a code or, in
a report of sums, the sum of the states whose bits are 1. A choice is truthful if it equals the
number that would be reported without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float32s, Int8s
from fedveil.mechanisms.unary import code_bits
from fedveil.mechanisms.unary.encoding import Kind, Report, UnaryEncoding
from fedveil.mechanisms.unary.rounding import States, neighbours
from fedveil.mechanisms.unary.state_sum import MAX_TABLE_CELLS
from fedveil.privacy.choice_audit import Choice, told_true


def choices(encoding: UnaryEncoding, dimension: int) -> list[Choice]:
    """Return the kinds of random choices in a report of `dimension` parameters.

    A choice is one randomised number of the report, and is truthful if noise did not change it. A
    parameter's state is its value, rounded to a whole number from -cells to cells.

    In a report of bits, each bit of a one-hot code is a choice, and is truthful with probability
    e^eps / (1 + e^eps). If `encoding.kind` is "oue", the bit of the parameter's own state is a fair
    coin instead, and a separate kind. In a report of sums, each parameter's sum of states is a
    choice. It is tested only for a parameter in the largest or the smallest state. Returns an empty
    list for a report of sums if `encoding.cells` is above 127.
    """
    eps, cells = encoding.eps, encoding.cells
    if encoding.report == "sum":
        if cells > MAX_TABLE_CELLS:
            return []
        chance = partial(_truthful_chance, encoding.kind, cells)
        return [Choice("a code's sum", eps, chance, dimension)]
    size = dimension * encoding.states
    if encoding.kind == "rr":
        return [Choice("a bit of the code", eps, told_true, size)]
    return [
        Choice("another bit of the code", eps, told_true, size),
        Choice("the own bit of the code", 0.0, told_true, dimension),
    ]


def truths(encoding: UnaryEncoding, report: Report, values: Float32s) -> Sequence[Int8s]:
    """Return which random choices in `report` are truthful: an array for each kind in `choices`.

    An array has one entry for each choice: 1 if it is truthful, 0 if not, and -1 if it is not
    tested. A choice is one randomised number of the report, a bit or a sum of states. It is
    truthful if it equals the number that `values`, the client's values, give without noise.
    """
    states, certain = _states(encoding, values)
    if encoding.report == "sum":
        if encoding.cells > MAX_TABLE_CELLS:
            return []
        told = (report == states).astype(np.int8)
        told[~certain | (np.abs(states) != encoding.cells)] = -1
        return [told]
    bits = code_bits.unpack_codes(report, encoding.cells, len(states))
    rows, own = np.arange(len(states)), states.astype(np.int64) + encoding.cells
    told = (1 - bits).astype(np.int8)
    told[rows, own] = bits[rows, own]
    told[~certain] = -1
    if encoding.kind == "rr":
        return [told.ravel()]
    owns = told[rows, own]
    told[rows, own] = -1
    return [told.ravel(), owns]


def _states(encoding: UnaryEncoding, values: Float32s) -> tuple[States, npt.NDArray[np.bool_]]:
    """Return the state of each value, and a mask of the values whose state is certain.

    A state is a value, scaled and rounded to a whole number from -`encoding.cells` to
    `encoding.cells`. With stochastic rounding, the state is certain only if the scaled value is a
    whole number. For any other value, the possible state nearer to 0 is returned.
    """
    if encoding.rounding == "nearest":
        states = encoding.encode(values)
        return states, np.ones(len(states), np.bool_)
    first, _, share = neighbours(values, encoding.cells, encoding.value_range)
    return first, share == 0


@lru_cache(maxsize=256)
def _truthful_chance(kind: Kind, cells: int, eps: float) -> float:
    """Return the probability that a parameter in the largest state reports this state.

    A state is a whole number from -`cells` to `cells`. A bit of the parameter's one-hot code stands
    for each state. The code is perturbed, and the report has the sum of the states whose bits are
    then 1. The function returns the probability that the sum is `cells`, if the parameter's state
    is `cells`. `kind`, "rr" or "oue", and `eps` are the other settings of the encoding.
    """
    encoding = UnaryEncoding(kind, eps, cells)
    return float(encoding.sum_law(cells)[cells + encoding.largest_sum])

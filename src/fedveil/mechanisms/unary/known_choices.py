"""The random choices in a report of `UnaryEncoding`, which an audit checks.

A choice is one randomised number of the report: a bit of a parameter's one-hot code, or the sum of
the states whose bits are 1. It is truthful if it equals the number without noise.
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
    """Return the kinds of choices in a report of `dimension` parameters.

    A choice is one randomised number of the report. It is truthful if noise did not change it. In a
    report of bits, each bit of a parameter's one-hot code is a choice, and is truthful with
    probability e^eps / (1 + e^eps). In oue, the bit of the parameter's own state is a fair coin
    instead. In a report of sums, each parameter's sum of states is a choice, and is truthful if it
    equals the parameter's state. Only sums of parameters in the largest or the smallest state are
    tested. Returns no choices if `encoding.report` is "sum" and `encoding.cells` is above 127.
    """
    eps, cells = encoding.eps, encoding.cells
    if encoding.report == "sum":
        if cells > MAX_TABLE_CELLS:
            return []
        chance = partial(_state_told, encoding.kind, cells)
        return [Choice("a code's sum", eps, chance, dimension)]
    size = dimension * encoding.states
    if encoding.kind == "rr":
        return [Choice("a bit of the code", eps, told_true, size)]
    return [
        Choice("another bit of the code", eps, told_true, size),
        Choice("the own bit of the code", 0.0, told_true, dimension),
    ]


def truths(encoding: UnaryEncoding, report: Report, values: Float32s) -> Sequence[Int8s]:
    """Return which random choices in `report` are truthful: one array for each entry of `choices`.

    A choice is one randomised number of the report, a bit or a sum of states. It is truthful if it
    equals the number that `values`, the client's values, give without noise. Entries are 1 for a
    truthful choice, 0 for one that is not, and -1 for one that is not tested.
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
    """Return the state of each value, and a mask of the values whose rounding is certain.

    With stochastic rounding, only a value that equals a state is certain. Any other value is
    rounded to one of two states, of which the one nearer to 0 is returned.
    """
    if encoding.rounding == "nearest":
        states = encoding.encode(values)
        return states, np.ones(len(states), np.bool_)
    first, _, share = neighbours(values, encoding.cells, encoding.value_range)
    return first, share == 0


@lru_cache(maxsize=256)
def _state_told(kind: Kind, cells: int, eps: float) -> float:
    """Return the probability that a report's sum for a parameter in the largest state is truthful.

    The sum adds up the states whose bits are 1 in the parameter's perturbed code. It is truthful if
    it equals the parameter's state, here `cells`. `kind`, "rr" or "oue", `eps` and `cells` are the
    parameters of the encoding.
    """
    encoding = UnaryEncoding(kind, eps, cells)
    return float(encoding.sum_law(cells)[cells + encoding.largest_sum])

"""The likelihood of a report of `UnaryEncoding`, given a client's values."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float64s
from fedveil.mechanisms.unary import code_bits
from fedveil.mechanisms.unary.encoding import Report, UnaryEncoding
from fedveil.mechanisms.unary.rounding import States, neighbours
from fedveil.mechanisms.unary.state_sum import MAX_TABLE_CELLS, sum_laws

#: ln Pr[a report | values] as a function of a vector of values. Natural logarithm.
LogLikelihood: TypeAlias = Callable[[npt.NDArray[np.floating[Any]]], float]


def stated_log_likelihood(encoding: UnaryEncoding, report: Report) -> LogLikelihood | None:
    """Return a function that maps a vector of values to ln Pr[report | values].

    Returns None if `encoding.report` is "sum" and `encoding.cells` is above 127. With stochastic
    rounding, Pr is the average over the numbers to which the values may be rounded. The error of
    the logarithm is at most 2^-40 per parameter. Probabilities below the smallest float count as 0.
    """
    if encoding.report == "bits":
        return _of_codes(encoding, report)
    return _of_sums(encoding, report) if encoding.cells <= MAX_TABLE_CELLS else None


def log_rounded(encoding: UnaryEncoding, states: States) -> LogLikelihood:
    """Return a function that maps a vector of values to ln Pr[they are rounded to `states`]."""
    return _averaged(encoding, lambda given: (given == states).astype(np.float64))


def _of_sums(encoding: UnaryEncoding, sums: Report) -> LogLikelihood:
    laws = _laws(encoding.exact_p, encoding.exact_q, encoding.cells)
    columns = sums.astype(np.int64) + encoding.largest_sum
    return _averaged(encoding, lambda given: laws[given.astype(np.int64) + encoding.cells, columns])


def _of_codes(encoding: UnaryEncoding, packed: Report) -> LogLikelihood:
    p, q = encoding.exact_p, encoding.exact_q
    count = code_bits.code_count(packed, encoding.cells) or 0
    bits = code_bits.unpack_codes(packed, encoding.cells, count)
    ones = int(np.count_nonzero(bits))
    log_one, log_zero = np.log(float(q)), np.log(float(1 - q))
    others = ones * log_one + (bits.size - ones) * log_zero
    own = np.log([float(1 - p), float(p)]) - [log_zero, log_one]
    rows = np.arange(count)

    def chance(given: States) -> Float64s:
        likelier: Float64s = np.exp(own)[bits[rows, given.astype(np.int64) + encoding.cells]]
        return likelier

    average = _averaged(encoding, chance)
    return lambda values: others + average(values)


def _averaged(encoding: UnaryEncoding, chance: Callable[[States], Float64s]) -> LogLikelihood:
    """Return a function that maps a vector of values to Σ ln (likelihood of a value's state).

    A state is a value, rounded to a whole number. `chance` maps an array of states, one for each
    value, to an array of likelihoods, which may lack a constant factor. With stochastic rounding,
    each value has two possible states. The likelihood is then the mean of `chance` over both,
    weighted by their probabilities.
    """

    def log_likelihood(values: npt.NDArray[np.floating[Any]]) -> float:
        if encoding.rounding == "nearest":
            likely = chance(encoding.encode(values))
        else:
            first, second, share = neighbours(values, encoding.cells, encoding.value_range)
            likely = (1 - share) * chance(first) + share * chance(second)
        with np.errstate(divide="ignore"):
            return float(np.log(likely).sum())

    return log_likelihood


@lru_cache(maxsize=4)
def _laws(p: Fraction, q: Fraction, cells: int) -> Float64s:
    return sum_laws(p, q, cells)

"""Unary encoding with local differential privacy: randomised response (RR) and OUE.

A value is clipped to [-value_range, value_range], scaled, and rounded to one of 2 * cells + 1
states, the whole numbers from -cells to cells. The state is coded one-hot. Each bit of the code is
perturbed independently: it becomes 1 with probability p if it was 1, and with probability q if it
was 0. `UnaryEncoding` has the formulas of p and q.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Float32s, Float64s, Int64s, Uint8s, into_floats
from fedveil.base.packing import add, add_within, pack, pack_parts, packed_size, unpack
from fedveil.base.validate import choice, integer, number, positive, within
from fedveil.entropy import Entropy, source
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact.alias_table import AliasTables
from fedveil.mechanisms.exact.biased_bits import double_above_q
from fedveil.mechanisms.unary import code_bits
from fedveil.mechanisms.unary.bit_flips import MAX_LIES, PerturbedSums
from fedveil.mechanisms.unary.release import UnaryRelease
from fedveil.mechanisms.unary.rounding import (
    States,
    add_update,
    nearest_moved,
    nearest_states,
    stochastic_states,
)
from fedveil.mechanisms.unary.state_sum import MAX_TABLE_CELLS, largest_sum, sum_law, sum_tables
from fedveil.privacy.compose import plain_sum
from fedveil.privacy.loss import PrivacyLoss

Kind: TypeAlias = Literal["rr", "oue"]
Rounding: TypeAlias = Literal["nearest", "stochastic"]
ReportKind: TypeAlias = Literal["sum", "bits"]
#: `sum`: S of every parameter, int16 or int32. `bits`: packed codes, uint8.
Report: TypeAlias = Array
Running: TypeAlias = Int64s

MAX_CELLS = 4096
#: For a larger eps, e^-eps is not a normal double-precision number.
MAX_EPS = 700.0
#: Code bits drawn at a time if `sum` has no tables.
_BITS_AT_ONCE = 1 << 22
_WRONG = "the packed report has the wrong length, padding or range"


class UnaryEncoding:
    """One-hot codes of discretised values, perturbed bit by bit, and an estimate of their mean.

    Output for `report="bits"`: 2 cells + 1 independent bits for each parameter, one for each state,
    a whole number from -cells to cells. A parameter's own state is its value, scaled and rounded.
    Its bit is 1 with probability p, and every other bit with probability q,

        rr:  p = e^eps / (e^eps + 1),  q = 1 / (e^eps + 1)        (source, eq. 2)
        oue: p = 1/2,                  q = 1 / (e^eps + 1)        (source, eq. 3)

    Output for `report="sum"`: for each parameter, S = Σ v * bit v over the states v =
    -cells..cells. S is computed from the bits alone, so it reveals no more than they do. The
    estimated mean is the same.

    q is rounded up to a double, and p = 1 - q for rr. The distributions are exact for these
    numbers.

    Privacy at delta = 0. Two values of a parameter differ in two bits of its code, so the loss is

        rr:  2 eps per parameter, eps per single bit
        oue: eps per parameter, ln((1 + e^eps) / 2) per single bit

    and d times as much for d parameters. The source states eps for both.

    Estimate of the mean from n reports: value_range / cells * Σ S / (n (p - q)).

    Source: Zhang Hao, Towards federated learning local differential privacy design, 2022. The
    estimate is eq. (6) there, with two corrections: (frequency - q) / (p - q) replaces eq. (5), and
    the missing minus signs are restored.

        >>> import numpy as np
        >>> from fedveil.entropy import Seeded
        >>> from fedveil.mechanisms import UnaryEncoding
        >>> rr = UnaryEncoding("rr", eps=4.0, cells=3)
        >>> reports = [rr.perturb(np.array([-0.6, 0.3]), Seeded(n)) for n in range(300)]
        >>> bool(np.abs(rr.estimate(reports, 300) - [-2 / 3, 1 / 3]).max() < 0.15)
        True
    """

    def __init__(
        self,
        kind: Kind,
        eps: float,
        cells: int,
        rounding: Rounding = "nearest",
        report: ReportKind = "sum",
        value_range: float = 1.0,
    ) -> None:
        self.kind = choice("kind", kind, ("rr", "oue"))
        self.eps = within("eps", eps, 0, MAX_EPS, open_low=True)
        self.cells = integer("cells", cells, 1, MAX_CELLS)
        self.rounding = choice("rounding", rounding, ("nearest", "stochastic"))
        self.report = choice("report", report, ("sum", "bits"))
        self.value_range = positive("value_range", value_range)
        q = double_above_q(self.eps)
        if q >= 0.5:
            raise InvalidValue(
                f"eps = {eps!r} is too small: 1 / (e^eps + 1) must be below 1/2 in double precision"
            )
        self.exact_q = Fraction(q)
        self.exact_p = 1 - self.exact_q if self.kind == "rr" else Fraction(1, 2)

    @property
    def p(self) -> float:
        """Return the probability that the bit of a parameter's own state is 1."""
        return float(self.exact_p)

    @property
    def q(self) -> float:
        """Return the probability that the bit of a state other than the parameter's own is 1."""
        return float(self.exact_q)

    @property
    def states(self) -> int:
        """Return the number of states, 2 cells + 1."""
        return 2 * self.cells + 1

    @property
    def loss_per_bit(self) -> PrivacyLoss:
        """Return the privacy loss of one bit of a code: eps for rr, ln((1 + e^eps) / 2) for oue."""
        if self.kind == "rr":
            return PrivacyLoss(self.eps, per="bit")
        nearly = math.log1p(math.expm1(self.eps) / 2)  # to one place of a float
        return PrivacyLoss(nearly + 2 * math.ulp(nearly), per="bit")

    @functools.cached_property
    def loss_per_parameter(self) -> PrivacyLoss:
        """Return the privacy loss of a parameter's whole code, ln(p (1 - q) / (q (1 - p))).

        The bit of the parameter's own state is 1 with probability p, any other with probability q.
        A ledger composes many of these losses to less than the sum of their epsilons.
        """
        whole = plain_sum([(self.eps, 2)]) if self.kind == "rr" else self.eps
        release = UnaryRelease(self.exact_p, self.exact_q, self.cells, self.report, whole)
        return PrivacyLoss(whole, per="parameter", release=release, part=self.loss_per_bit)

    def encode(self, values: npt.ArrayLike, entropy: Entropy | None = None) -> States:
        """Return the state of every value: cells * value / value_range, clipped and rounded.

        The rounding `nearest` takes the nearest state, or the even one of two equally near states.
        The rounding `stochastic` goes up or down at random, drawn from `entropy`, so that the
        expected state is the number before rounding. Infinities are clipped. Raises `InvalidValue`
        on NaN.
        """
        if self.rounding == "nearest":
            return nearest_states(values, self.cells, self.value_range)
        if entropy is None:
            raise InvalidValue("entropy = None: stochastic rounding draws from an entropy")
        return stochastic_states(values, self.cells, self.value_range, entropy)

    def encode_moved(self, start: Float32s, update: Float32s, entropy: Entropy) -> States:
        """Return the states of the values `start + update`, clipped and rounded as by `encode`.

        Raises `InvalidValue` if the update is not finite, or if an entry of the sum is NaN.
        """
        if self.rounding == "nearest":
            return nearest_moved(start, update, self.cells, self.value_range)
        values = start.copy()
        if add_update(values, update, np.float32(self.value_range)) < 0:
            raise InvalidValue("the update is not finite")
        return self.encode(values, entropy)

    def values(self, states: States) -> Float64s:
        """Return the value that each state stands for: state * value_range / cells."""
        return states.astype(np.float64) * (self.value_range / self.cells)

    def perturb(self, values: npt.ArrayLike, entropy: Entropy) -> Report:
        """Return the report of a vector. The report is protected and may be sent.

        If `values` has floats, `encode` first rounds them to states. Integers are states already.
        """
        array, entropy = np.asarray(values), source(entropy)
        if array.ndim != 1:
            raise InvalidValue(f"values has shape {array.shape}, one dimension is needed")
        states = self._states(array) if array.dtype.kind in "iu" else self.encode(array, entropy)
        return self.perturb_states(states, entropy)

    def perturb_states(self, states: States, entropy: Entropy) -> Report:
        if self.report == "bits":
            return self._codes(states, entropy)
        sums = np.empty(len(states), self.sum_dtype)
        if self._lies is not None:
            self._lies.draw(states, entropy, sums)
        elif self.cells <= MAX_TABLE_CELLS:
            self._tables.draw(states, entropy, sums)
        else:
            self._sum_of_bits(states, entropy, sums)
        return sums

    @functools.cached_property
    def _lies(self) -> PerturbedSums | None:
        few = 2 * self.cells * self.q <= MAX_LIES
        return PerturbedSums(self.exact_p, self.exact_q, self.cells) if few else None

    @functools.cached_property
    def _tables(self) -> AliasTables:
        return sum_tables(self.exact_p, self.exact_q, self.cells)

    def _states(self, array: npt.NDArray[np.integer[Any]]) -> States:
        if array.size and not -self.cells <= array.min() <= array.max() <= self.cells:
            raise InvalidValue(
                f"values holds states from {array.min()} to {array.max()}, "
                f"outside [-{self.cells}, {self.cells}]"
            )
        return array.astype(np.int16, copy=False)

    def _codes(self, states: States, entropy: Entropy) -> Report:
        return code_bits.draw_codes(self.exact_p, self.exact_q, self.cells, states, entropy)

    def _sum_of_bits(self, states: States, entropy: Entropy, sums: Report) -> None:
        sums[:] = 0
        step = max(1, _BITS_AT_ONCE // self.states)
        for begin in range(0, len(states), step):
            packed = self._codes(states[begin : begin + step], entropy)
            code_bits.fold_codes(packed, self.cells, sums[begin : begin + step])

    def add(self, running: Running | None, report: Report) -> Running:
        """Add the sum of each code in `report` to `running` in place, and return `running`.

        The sum of a code adds up the states, whole numbers, whose bits are 1. If `running` is None,
        it starts as zeros. Raises `InvalidValue` if it is for another number of parameters.
        """
        count = len(report) if self.report == "sum" else self._count(report)
        if running is None:
            running = np.zeros(count, np.int64)
        if len(running) != count:
            raise InvalidValue(
                f"report is of {count} parameters, the running sums of {len(running)}"
            )
        if self.report == "sum":
            add(report, running)
        else:
            code_bits.fold_codes(report, self.cells, running)
        return running

    def _count(self, report: Report) -> int:
        count = code_bits.code_count(report, self.cells) if report.dtype == np.uint8 else None
        if count is None:
            raise InvalidValue(f"report is no packing of codes of {self.states} bits")
        return count

    def estimate(
        self, reports: Running | Sequence[Report], n: int, *, overwrite: bool = False
    ) -> Float64s:
        """Return an estimate of the mean of n clients' values, for each parameter.

        `reports` is either a list of the clients' reports, or the running sums that `add` computed
        from them. The estimate is unbiased for the mean of the clients' rounded values. A rounded
        value is state * value_range / cells. With `overwrite`, the result may use the memory of
        the running sums.
        """
        n = integer("n", n, 1)
        if isinstance(reports, np.ndarray):
            running = reports
        elif len(reports) != n:
            raise InvalidValue(f"n = {n} is not the number of reports, {len(reports)}")
        else:
            running = functools.reduce(self.add, reports[1:], self.add(None, reports[0]))
        unit = self.value_range / (self.cells * n * self._gap)
        return into_floats(running if overwrite else running.copy(), unit)

    def frequencies(self, reports: Sequence[Report]) -> Float64s:
        """Return unbiased estimates of the share of clients in each state.

        The result has a row for each parameter and a column for each state. An estimate is
        (frequency - q) / (p - q), where frequency is the share of reports in which the state's bit
        is 1, and p and q are the probabilities of this encoding. Raises `InvalidValue` unless
        `self.report` is "bits".
        """
        if self.report != "bits":
            raise InvalidValue("report = 'sum' holds no frequencies: they need report = 'bits'")
        count = self._count(reports[0])
        ones = np.zeros((count, self.states), np.int64)
        for report in reports:
            if self._count(report) != count:
                raise InvalidValue("reports are of different numbers of parameters")
            ones += code_bits.unpack_codes(report, self.cells, count)
        return (ones / len(reports) - self.q) / self._gap

    @property
    def _gap(self) -> float:
        return float(self.exact_p - self.exact_q)

    def variance(self, n: int, value: float = 0.0) -> float:
        """Return the variance of the estimated mean, if all n clients have the value `value`.

        `value` must be the value of a state, so that rounding does not change it. The variance is

            value_range² [Σ (v / cells)² q (1 - q) + x² (p (1 - p) - q (1 - q))] / (n (p - q)²),

        with the sum over all states v in -cells..cells, x = value / value_range, and the properties
        p and q. For any other value, the rounding `stochastic` adds at most (value_range / cells)²
        / (4 n), and `nearest` a bias of at most value_range / (2 cells).
        """
        n = integer("n", n, 1)
        x = number("value", value) / self.value_range
        other = float(self.exact_q * (1 - self.exact_q))
        own = float(self.exact_p * (1 - self.exact_p))
        squares = (self.cells + 1) * (2 * self.cells + 1) / (3 * self.cells)
        spread = squares * other + x**2 * (own - other)
        return self.value_range**2 * spread / (n * self._gap**2)

    def sum_law(self, state: int) -> Float64s:
        """Return the distribution of the sum of a perturbed code, for a parameter in `state`.

        The sum adds up the states, whole numbers, whose bits are 1. The result has an entry for
        each sum from -`largest_sum` to `largest_sum`.
        """
        state = integer("state", state, -self.cells, self.cells)
        return sum_law(self.exact_p, self.exact_q, self.cells, state)

    @property
    def largest_sum(self) -> int:
        """Return the largest possible sum of a code, which adds up the states whose bits are 1."""
        return largest_sum(self.cells)

    @property
    def sum_dtype(self) -> np.dtype[np.signedinteger[Any]]:
        """Return the integer type of the sums in a report: int16 if it can hold them, else int32.

        A sum adds up the states, whole numbers, whose bits are 1 in a parameter's code. It is
        between -`largest_sum` and `largest_sum`.
        """
        return np.dtype(np.int16 if self.largest_sum < 1 << 15 else np.int32)

    @property
    def sum_bits(self) -> int:
        """Return the number of bits of one sum in a packed report.

        The report has a sum for each parameter, from -`largest_sum` to `largest_sum` (`sum_dtype`).
        For 50 cells, there are 2,551 possible sums, which need 12 bits.
        """
        return (2 * self.largest_sum).bit_length()

    def packed_size(self, dimension: int) -> int:
        """Return the number of bytes of a packed report of `dimension` parameters."""
        if self.report == "bits":
            return code_bits.packed_codes_size(dimension * self.states)
        return packed_size(dimension, self.sum_bits)

    def pack(self, report: Report) -> Uint8s:
        """Return the bytes of a report. A report of bits is packed already."""
        if self.report == "bits":
            return report
        return pack(report, -self.largest_sum, self.sum_bits)

    def pack_parts(self, count: int, report: Callable[[slice], Report]) -> Uint8s:
        """Return the bytes of a report of `count` parameters, computed slice by slice.

        `report(part)` must return the report of the parameters in the slice `part`.
        """
        if self.report == "bits":
            return report(slice(0, count))  # packed codes end with a mark, so parts do not join
        return pack_parts(count, -self.largest_sum, self.sum_bits, report)

    def add_packed(self, running: Running, packed: Uint8s) -> None:
        """Add the sums in an untrusted packed report to `running`, in place.

        A report describes one code for each parameter, with one bit for each state, a whole number.
        The code's sum adds up the states whose bits are 1. Raises `InvalidValue`, and adds nothing,
        if the bytes are not a packed report.
        """
        if self.report == "bits":
            self.add(running, self.unpack(packed, len(running)))
        elif not add_within(packed, *self._span, running):
            raise InvalidValue(_WRONG)

    @property
    def _span(self) -> tuple[int, int, int]:
        return -self.largest_sum, self.largest_sum, self.sum_bits

    def unpack(self, packed: Uint8s, dimension: int) -> Report:
        """Decode the bytes of an untrusted report.

        Raises `InvalidValue` if they are not a packed report of `dimension` parameters.
        """
        if self.report == "bits":
            if len(packed) != self.packed_size(dimension) or self._count(packed) != dimension:
                raise InvalidValue("the packed report has the wrong length")
            return packed
        sums = np.empty(dimension, self.sum_dtype)
        if not unpack(packed, *self._span, sums):
            raise InvalidValue(_WRONG)
        return sums

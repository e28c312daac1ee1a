"""Converts values to states, whole numbers from -cells to cells: scales, clips and rounds them."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float32s, Float64s, Int16s, Int32s, Uint64s
from fedveil.base.kernels import compiled
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue

States: TypeAlias = Int16s

_Values = npt.NDArray[np.floating[Any]]
#: Words of keystream drawn at a time: 256 KiB.
_BLOCK = 1 << 15


def nearest_states(values: npt.ArrayLike, cells: int, value_range: float) -> States:
    """Return for each value the state in -cells..cells nearest to cells * value / value_range.

    Raises `InvalidValue` on NaN.
    """
    array = _floating(values)
    states = np.empty(array.shape, np.int16)
    if not _nearest(array.reshape(-1), cells, value_range, states.reshape(-1)):
        raise InvalidValue("values holds NaN")
    return states


def nearest_moved(start: Float32s, update: Float32s, cells: int, value_range: float) -> States:
    """Return the states nearest to cells * (start + update) / value_range, in -cells..cells.

    Raises `InvalidValue` if the update is not finite, or if an entry of the sum is NaN.
    """
    states = np.empty(len(update), np.int16)
    beyond = _nearest_moved(start, update, np.float32(value_range), cells, value_range, states)
    if beyond < 0:
        raise InvalidValue("the update is not finite" if beyond == -1 else "values holds NaN")
    return states


def stochastic_states(
    values: npt.ArrayLike, cells: int, value_range: float, entropy: Entropy
) -> States:
    """Return cells * value / value_range, clipped to -cells..cells and rounded at random.

    A number between two states is rounded to one of them. The expected state is exactly the number.
    Raises `InvalidValue` on NaN.
    """
    # The draw decides whether the magnitude is rounded up. Its fraction is exact in floating point.
    array = _floating(values)
    states = np.empty(array.shape, np.int16)
    flat, out = array.reshape(-1), states.reshape(-1)
    words = np.empty(min(len(flat), _BLOCK), np.uint64)
    undecided = np.empty(len(words), np.int32)
    for begin in range(0, len(flat), _BLOCK):
        part, part_out = flat[begin : begin + _BLOCK], out[begin : begin + _BLOCK]
        entropy.fill(words[: len(part)])
        count = _stochastic(part, cells, value_range, words[: len(part)], part_out, undecided)
        if count < 0:
            raise InvalidValue("values holds NaN")
        for i in undecided[:count]:
            scaled = _scaled(part[i : i + 1], cells, value_range)[0]
            digits = math.ldexp(abs(scaled) % 1.0, 64)
            if entropy.bernoulli(digits % 1.0, 1)[0]:
                part_out[i] += math.copysign(1, scaled)
    return states


def neighbours(
    values: npt.ArrayLike, cells: int, value_range: float
) -> tuple[States, States, Float64s]:
    """Return the two states to which each value may be rounded, and the second's probability.

    They are the whole numbers on both sides of cells * value / value_range, limited to
    -cells..cells. The first state is the one nearer to 0.
    """
    scaled = _scaled(_floating(values), cells, value_range)
    share, whole = np.modf(np.abs(scaled))
    first, second = (np.copysign(state, scaled) for state in (whole, np.minimum(whole + 1, cells)))
    return first.astype(np.int16), second.astype(np.int16), share


def _floating(values: npt.ArrayLike) -> _Values:
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return array.astype(np.float64)
    if array.dtype.kind != "f":
        raise InvalidValue(f"values has dtype {array.dtype}, a real floating type is needed")
    return array if array.dtype == np.float32 else array.astype(np.float64, copy=False)


def _scaled(values: _Values, cells: int, value_range: float) -> Float64s:
    with np.errstate(over="ignore"):  # infinity is clipped too
        return np.clip(values.astype(np.float64) * cells / value_range, -cells, cells)


def _add_update_numpy(values: Float32s, update: Float32s, clip: np.float32) -> int:
    if not np.isfinite(update).all():
        return -1
    with np.errstate(over="ignore"):  # a weight beyond float32 is clipped as others are
        values += update
    return int(np.count_nonzero(np.abs(values) > clip))


@compiled(_add_update_numpy)
def add_update(values: Float32s, update: Float32s, clip: np.float32) -> int:
    """Add `update` to `values` in place. Returns the number of results outside [-clip, clip].

    Returns -1 instead if the update is not finite.
    """
    beyond, fine = np.int32(0), np.int32(1)
    for i in range(len(values)):
        fine &= np.int32(abs(update[i]) < np.inf)
        values[i] += update[i]
        beyond += np.int32(abs(values[i]) > clip)
    return int(beyond) if fine else -1


def _nearest_numpy(values: _Values, cells: int, value_range: float, states: States) -> bool:
    scaled = np.rint(_scaled(values, cells, value_range))
    fine = not np.isnan(scaled).any()
    states[:] = scaled if fine else 0
    return fine


@compiled(_nearest_numpy)
def _nearest(values: _Values, cells: int, value_range: float, states: States) -> bool:
    """Write the state nearest to cells * value / value_range to `states`, for each value.

    Returns False if a value is NaN.
    """
    fine = True
    for i in range(len(values)):
        scaled = np.float64(values[i]) * cells / value_range
        fine &= scaled == scaled
        states[i] = np.int16(min(max(np.rint(scaled), -cells), cells))
    return fine


def _nearest_moved_numpy(
    start: Float32s,
    update: Float32s,
    clip: np.float32,
    cells: int,
    value_range: float,
    states: States,
) -> int:
    values = start.copy()
    beyond: int = _add_update_numpy(values, update, clip)
    if beyond < 0:
        return -1
    return beyond if _nearest_numpy(values, cells, value_range, states) else -2


@compiled(_nearest_moved_numpy)
def _nearest_moved(
    start: Float32s,
    update: Float32s,
    clip: np.float32,
    cells: int,
    value_range: float,
    states: States,
) -> int:
    """Write the states nearest to cells * (start + update) / value_range to `states`.

    The states are limited to -cells..cells. Returns the number of entries of start + update outside
    [-clip, clip]. Returns -1 if the update is not finite, or else -2 if an entry of start + update
    is NaN. In these two cases, `states` must not be used.
    """
    most = np.float64(cells)
    beyond, infinite, undefined = np.int32(0), np.int32(0), np.int32(0)
    for i in range(len(states)):
        value = start[i] + update[i]
        beyond += np.int32(abs(value) > clip)
        scaled = np.float64(value) * most / value_range
        infinite |= np.int32(not abs(update[i]) < np.inf)
        undefined |= np.int32(scaled != scaled)
        state = np.rint(scaled)
        state = state if state > -most else -most
        states[i] = np.int16(np.int32(state if state < most else most))
    if infinite:
        return -1
    return -2 if undefined else int(beyond)


def _stochastic_numpy(
    values: _Values,
    cells: int,
    value_range: float,
    words: Uint64s,
    states: States,
    undecided: Int32s,
) -> int:
    scaled = _scaled(values, cells, value_range)
    if np.isnan(scaled).any():
        return -1
    fraction, whole = np.modf(np.abs(scaled))
    digits = np.ldexp(fraction, 64)
    first = digits.astype(np.uint64)
    states[:] = np.copysign(whole + (words < first), scaled)
    ties = np.flatnonzero((words == first) & (first.astype(np.float64) != digits))
    undecided[: len(ties)] = ties
    return len(ties)


@compiled(_stochastic_numpy)
def _stochastic(
    values: _Values,
    cells: int,
    value_range: float,
    words: Uint64s,
    states: States,
    undecided: Int32s,
) -> int:
    """Write cells * value / value_range, clipped and rounded at random, to `states` for each value.

    The clipped number is rounded up or down by 64 random bits, so that its expectation does not
    change. `words` has these bits for each value. If they do not suffice to decide, the value is
    rounded towards 0, and its index is written to `undecided`. Returns the number of such values,
    or -1 if a value is NaN.
    """
    count = 0
    for i in range(len(values)):
        scaled = np.float64(values[i]) * cells / value_range
        if scaled != scaled:
            return -1
        magnitude = min(abs(scaled), float(cells))
        whole = np.floor(magnitude)
        digits = (magnitude - whole) * 18446744073709551616.0
        first = np.uint64(digits)
        state = np.int16(whole) + np.int16(words[i] < first)
        states[i] = -state if scaled < 0 else state
        if words[i] == first and np.float64(first) != digits:
            undecided[count] = i
            count += 1
    return count

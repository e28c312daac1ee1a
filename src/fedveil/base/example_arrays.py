"""Arrays for examples of different lengths, or with several inputs (such as an image and a text).

They are NumPy structured arrays with a field for each input. Examples of different lengths are
padded with zeros in one field, and a second field has their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Bools

#: The shape of an example, or of each of its inputs. -1 means that the length differs by example.
Shape: TypeAlias = "tuple[int, ...] | dict[str, tuple[int, ...]]"
#: Some examples: an array, a list if their lengths differ, or one of these for each input.
Opened: TypeAlias = "Array | list[Array] | dict[str, Array | list[Array]]"

#: The target of an example: its class, numbers, truth values, its next tokens, or a target that
#: only a task of the user's understands.
Targets = Literal["class", "numbers", "bits", "tokens", "own"]

#: The target of a token that training ignores.
IGNORED = -100

_VALUES, _LENGTH = "values of one length", "length"
#: The smallest power of two above every int64.
_INT64_END = 2.0**63


def joined(columns: Mapping[str, Array]) -> Array:
    """Combine the inputs of examples into one structured array, with a field for each input.

    `columns` maps the name of an input to an array of this input for all examples.
    """
    fields: list[Any] = [(name, part.dtype, part.shape[1:]) for name, part in columns.items()]
    whole = np.zeros(len(next(iter(columns.values()))), np.dtype(fields))
    for name, part in columns.items():
        whole[name] = part
    return whole


def ragged(items: Sequence[Array] | Array) -> Array:
    """Combine examples of different lengths into one structured array of padded examples."""
    lengths = [len(item) for item in items]
    values = np.zeros((len(items), max(lengths), *items[0].shape[1:]), np.result_type(*items))
    for row, item in zip(values, items, strict=True):
        row[: len(item)] = item
    return joined({_VALUES: values, _LENGTH: np.array(lengths, np.int64)})


def stacked(parts: Sequence[Array]) -> Array:
    """Concatenate arrays of examples. Raises ValueError if their inputs or shapes do not match."""
    first, *others = alike(parts)
    if not others:
        return first
    if is_ragged(first.dtype):
        return ragged([item for part in (first, *others) for item in _column(part)])
    if first.dtype.names is None:
        return np.concatenate([first, *others])
    names = first.dtype.names
    return joined({name: stacked([part[name] for part in (first, *others)]) for name in names})


def alike(parts: Sequence[Array]) -> list[Array]:
    """Convert arrays of examples to the same form, so that they can be concatenated.

    If any array has examples of different lengths, all arrays get the form that `ragged` returns.
    If examples have several inputs, each input is converted on its own. Raises ValueError if the
    arrays have different inputs. Also raises it if one array has examples of different lengths, and
    another has examples that are single numbers, which have no length.
    """
    if any(is_ragged(part.dtype) for part in parts):
        if not all(is_plain(part) or is_ragged(part.dtype) for part in parts):
            raise ValueError("they have other inputs")
        if any(is_plain(part) and part.ndim < 2 for part in parts):
            raise ValueError("some are single numbers")
        return [part if is_ragged(part.dtype) else ragged(part) for part in parts]
    names = parts[0].dtype.names
    if any(part.dtype.names != names for part in parts):
        raise ValueError("they have other inputs")
    if names is None:
        return list(parts)
    columns = {name: alike([part[name] for part in parts]) for name in names}
    return [joined({name: columns[name][i] for name in names}) for i in range(len(parts))]


def is_plain(array: Array) -> bool:
    return array.dtype.names is None


def is_ragged(dtype: npt.DTypeLike) -> bool:
    """Return True if arrays of this dtype hold examples of different lengths."""
    return np.dtype(dtype).names == (_VALUES, _LENGTH)


def shape_of(array: Array) -> Shape:
    """Return the shape of one example of an array, or a dict with the shape of each input.

    A length that differs between the examples is -1.
    """
    if is_plain(array):
        return array.shape[1:]
    if is_ragged(array.dtype):
        return (-1, *array[_VALUES].shape[2:])
    return {name: _plain_shape(array[name]) for name in array.dtype.names or ()}


def _plain_shape(column: Array) -> tuple[int, ...]:
    shape = shape_of(column)
    assert isinstance(shape, tuple), "inputs are not nested"
    return shape


def opened(rows: Array) -> Opened:
    """Return the examples as an ordinary array, or as a dict with such an array for each input.

    Examples of different lengths are returned as a list of arrays.
    """
    if rows.dtype.names is None or is_ragged(rows.dtype):
        return _column(rows)
    return {name: _column(rows[name]) for name in rows.dtype.names}


def items(rows: Array) -> list[Array]:
    """Return a list with an array for each example. Examples must have a single input."""
    return list(_column(rows))


def values(rows: Array) -> Array:
    """Return all examples as one ordinary array. Examples must have one input.

    Examples of different lengths are concatenated along their first dimension.
    """
    column = _column(rows)
    return np.concatenate(column) if isinstance(column, list) else column


def _column(rows: Array) -> Array | list[Array]:
    if not is_ragged(rows.dtype):
        return np.ascontiguousarray(rows)
    pairs = zip(rows[_VALUES], rows[_LENGTH], strict=True)
    return [np.ascontiguousarray(row[:length]) for row, length in pairs]


def as_finite(array: Array) -> tuple[Array, Bools]:
    """Return examples as float32, and a mask: True if all values of an example are finite."""
    with np.errstate(all="ignore"):
        rows = np.ascontiguousarray(array, np.float32)
    return rows, all_of(np.isfinite(rows))


def as_whole(array: Array) -> tuple[Array, Bools]:
    """Return examples as int64, and a mask of the examples that the conversion does not change."""
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f":
            finite = np.isfinite(array)  # as a 16-bit float, the end below is infinite
            whole: Bools = finite & (array == np.floor(array))
            whole &= (array >= -_INT64_END) & (array < _INT64_END)
            array = np.where(whole, array, 0)
        else:
            whole = np.asarray(array <= np.iinfo(np.int64).max)
        return np.ascontiguousarray(array).astype(np.int64), all_of(whole)


def all_of(entries: Array) -> Bools:
    """Return a mask: True for each example (row of `entries`) of which all entries are true."""
    width = prod(entries.shape[1:])
    rows: Bools = np.all(entries.reshape(len(entries), width), axis=1)
    return rows


def blank(rows: Array, usable: Bools) -> Array:
    """Return the examples `rows`, with zeros in place of those for which `usable` is False."""
    if usable.all():
        return rows
    blank = rows.copy()
    blank[~usable] = 0
    return blank

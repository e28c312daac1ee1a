"""Turns a user's examples, with one or several inputs, into one checked array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedveil.base import own_code
from fedveil.base.array_types import Array, without_masks, without_na
from fedveil.base.example_arrays import is_plain, joined, ragged
from fedveil.errors import DataInvalid


def as_array(name: str, part: str, value: Any, *, uneven: bool = True) -> Array:
    """Convert a user's `value` to an array. A mapping of several inputs becomes a structured array.

    If `uneven` is True, a list of arrays of different lengths becomes a structured array too.
    Raises `DataInvalid` if `value` cannot be converted. `name` (the data set) and `part` (such as
    "x_train") are for error messages.
    """
    if isinstance(value, Mapping):
        return _several(name, part, value)
    value = without_masks(value)
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        return _of_pandas(array) if array.dtype == object and hasattr(value, "isna") else array
    except Exception as error:  # a ragged list, or any error of an object's own __array__
        items = _items(value) if uneven else None
        if items is None:
            raise DataInvalid(
                f"data {name}: {part} is not an array: {own_code.described(error)}"
            ) from None
    return ragged(items)


def _of_pandas(array: Array) -> Array:
    """Convert an array of Python objects to an array of numbers, with NaN for pandas' NA.

    NumPy makes such an array from a pandas column whose type exists only in pandas. Returns `array`
    unchanged if some objects are not numbers.
    """
    numbers = np.array(without_na(array, np.nan).tolist())
    return numbers if numbers.dtype.kind in "fiub" else array


def _items(value: Any) -> list[Array] | None:
    """Return the items of `value` as arrays of numbers that differ only in length.

    Returns None if the items differ otherwise, or if they are not arrays of numbers.
    """
    try:
        items = [np.asarray(v.detach().cpu() if hasattr(v, "detach") else v) for v in value]
    except Exception:
        return None
    shapes = {item.shape[1:] for item in items}
    fits = all(item.ndim and item.dtype.kind in "fiub" for item in items)
    return items if fits and len(shapes) == 1 else None


def _several(name: str, part: str, value: Mapping[Any, Any]) -> Array:
    columns = {}
    for key, column in value.items():
        if not isinstance(key, str) or not key.isidentifier():
            raise DataInvalid(
                f"data {name}: {part} has an input called {key!r}, which cannot be an argument "
                "name of the model's forward"
            )
        array = as_array(name, f"{part}[{key!r}]", column)
        columns[key] = checked(name, f"{part}[{key!r}]", array, alone=False)
    lengths = {key: len(column) for key, column in columns.items()}
    if not lengths or len(set(lengths.values())) > 1:
        said = ", ".join(f"{length} of {key}" for key, length in lengths.items()) or "none"
        raise DataInvalid(
            f"data {name}: {part} has {said}, but each input needs the same number of examples"
        )
    return joined(columns)


def checked(name: str, part: str, array: Array, *, alone: bool = True) -> Array:
    """Check that `array` has finite real numbers, and return it with floats as float32.

    `alone` is False if `array` is one of several inputs of the examples. In this case, integers
    become int64, and `array` may have one dimension: one number for each example. Raises
    `DataInvalid` for an invalid array. `name` (the data set) and `part` (such as "x_train") are for
    error messages.
    """
    if not is_plain(array):
        for field in array.dtype.names or ():
            if array.dtype[field].base.kind == "f":
                _finite(name, part, array[field])
        return array
    if array.dtype.kind not in "fiub":
        raise DataInvalid(
            f"data {name}: {part} has dtype {array.dtype}, but real numbers are needed"
        )
    if array.ndim < 1 + alone or array.size == 0:
        raise DataInvalid(
            f"data {name}: {part} has shape {array.shape}, but [examples, ...] without a zero is "
            "needed"
        )
    if array.dtype.kind != "f":
        whole = array.dtype.kind in "iu" and not alone
        if whole and array.max() > np.iinfo(np.int64).max:
            raise DataInvalid(
                f"data {name}: {part} holds {array.max()}, but whole numbers below 2**63 are needed"
            )
        return np.ascontiguousarray(array, np.int64 if whole else array.dtype)
    with np.errstate(over="ignore"):  # float32 overflow becomes infinity, which `_finite` reports
        x = np.ascontiguousarray(array, np.float32)
    _finite(name, part, x)
    return x


def _finite(name: str, part: str, x: Array) -> None:
    finite = np.isfinite(x)
    if not finite.all():
        place = place_of(np.atleast_1d(~finite.reshape(len(x), -1).all(axis=1)))
        raise DataInvalid(
            f"data {name}: {part} holds NaN or infinity (in float32) at {place}, but finite "
            "numbers are needed"
        )


def place_of(wrong: Array) -> str:
    """Name the first True of the mask `wrong`, and count the others: "example 3 and 7 more"."""
    first, *others = np.flatnonzero(wrong)
    return f"example {first}" + (f" and {len(others):,} more" if others else "")

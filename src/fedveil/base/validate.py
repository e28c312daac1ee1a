"""Checks of function arguments. They raise `InvalidValue`, which names the argument."""

from __future__ import annotations

import math
import operator
import os
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np

from fedveil.errors import InvalidValue


def number(name: str, value: SupportsFloat) -> float:
    """Return `value` as a float. Raises `InvalidValue` unless it is finite."""
    # The instance check of a protocol is slow, and most values have a plain type.
    if type(value) not in (float, int) and (
        isinstance(value, bool) or not isinstance(value, SupportsFloat)
    ):
        raise InvalidValue(f"{name} = {value!r} is not a number")
    result = float(value)
    if not math.isfinite(result):
        raise InvalidValue(f"{name} = {value!r} is not finite")
    return result


def positive(name: str, value: SupportsFloat) -> float:
    """Return `value` as a float. Raises `InvalidValue` unless it is finite and above 0."""
    return within(name, value, 0, math.inf, open_low=True, open_high=True)


def non_negative(name: str, value: SupportsFloat) -> float:
    """Return `value` as a float. Raises `InvalidValue` unless it is finite and at least 0."""
    return within(name, value, 0, math.inf, open_high=True)


def within(
    name: str,
    value: SupportsFloat,
    low: float,
    high: float,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return `value` as a float. Raises `InvalidValue` unless it is from `low` to `high`.

    `open_low` and `open_high` exclude `low` and `high` themselves.
    """
    result = number(name, value)
    below = result <= low if open_low else result < low
    above = result >= high if open_high else result > high
    if below or above:
        left, right = "(" if open_low else "[", ")" if open_high else "]"
        raise InvalidValue(f"{name} = {value!r} is outside {left}{low:g}, {high:g}{right}")
    return result


def integer(name: str, value: SupportsIndex, low: int, high: int | None = None) -> int:
    """Return `value` as an int. Raises `InvalidValue` unless it is whole and in `low`..`high`.

    If `high` is None, there is no upper limit.
    """
    # The instance check of a protocol is slow, and most values have a plain type.
    if type(value) is not int and (
        isinstance(value, bool | np.bool_) or not isinstance(value, SupportsIndex)
    ):
        raise InvalidValue(f"{name} = {value!r} is not a whole number")
    result = operator.index(value)
    if result < low or (high is not None and result > high):
        allowed = f"[{low}, {high}]" if high is not None else f"[{low}, inf)"
        raise InvalidValue(f"{name} = {value!r} is outside {allowed}")
    return result


def choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidValue(f"{name} = {value!r} is not one of {', '.join(allowed)}")
    return value


def path(name: str, value: object) -> Path:
    """Return `value` as a path. Raises `InvalidValue` unless it is text or a path."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidValue(f"{name} = {value!r} is not a path: use text or a pathlib.Path")
    return Path(value)


def functions(**given: object) -> None:
    """Raise `InvalidValue` if an argument in `given` is neither None nor a function."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise InvalidValue(f"{name} = {value!r} is not a function, such as {name}=print")


def finite_vector(name: str, value: Any) -> np.ndarray[Any, np.dtype[np.floating[Any]]]:
    """Return `value` as a one-dimensional array of finite floats, or raise `InvalidValue`."""
    array = real_vector(name, value)
    if not np.isfinite(array).all():
        raise InvalidValue(f"{name} holds NaN or infinity")
    return array


def real_vector(name: str, value: Any) -> np.ndarray[Any, np.dtype[np.floating[Any]]]:
    """Return `value` as a vector of floats, which may be NaN, or raise `InvalidValue`."""
    array = np.asarray(value)
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise InvalidValue(f"{name} has dtype {array.dtype}, but a real floating type is needed")
    if array.ndim != 1:
        raise InvalidValue(f"{name} has shape {array.shape}, but one dimension is needed")
    return array

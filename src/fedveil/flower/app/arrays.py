"""The arrays of a Flower record as one flat float32 vector, and back.

The vector has all float16, float32 and float64 arrays, except arrays whose names match the setting
`keep`. Kept arrays are not sent: each client starts from the server's value, and its own new value
stays with the client. Arrays of any other type are refused. No array is sent unprotected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from fedveil.errors import ModelInvalid, RoundVoid
from fedveil.protections.base import Update

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

AVERAGED = ("float16", "float32", "float64")
#: PyTorch's names of BatchNorm's statistics.
STATISTICS = ("*running_mean", "*running_var")


@dataclass(frozen=True)
class Place:
    """The name, type and shape of one array, and its slice of the flat vector."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    span: slice


class ArrayLayout:
    """Maps each array of a record to its slice of the flat vector.

    Arrays whose names match a pattern in `keep` are left out. Raises `ModelInvalid` if another
    array has an unsupported type. If `perturbed` is True, BatchNorm's statistics are refused too,
    because a noisy variance can be negative.
    """

    def __init__(
        self, arrays: Arrays, keep: Sequence[str] = (), *, perturbed: bool = False
    ) -> None:
        self.places: list[Place] = []
        self.kept: list[str] = []
        self.dimension = 0
        problems = []
        for name, array in arrays.items():
            if matches(name, keep):
                self.kept.append(name)
            elif str(array.dtype) not in AVERAGED:
                problems.append(
                    f"{name} has type {array.dtype}; {', '.join(AVERAGED)} are averaged"
                )
            elif perturbed and matches(name, STATISTICS):
                problems.append(
                    f"{name} is a statistic of BatchNorm, which does not survive noise (GroupNorm "
                    f"has none)"
                )
            else:
                span = slice(self.dimension, self.dimension + array.size)
                self.places.append(Place(name, array.dtype, array.shape, span))
                self.dimension = span.stop
        if problems:
            raise ModelInvalid(
                f"the arrays cannot be protected: {'; '.join(problems)}; what `keep` names stays "
                f"at the server's value and is never sent"
            )
        if not self.dimension:
            raise ModelInvalid("the arrays cannot be protected: there is nothing in them to send")

    def vector(self, arrays: Arrays) -> Update:
        out = np.empty(self.dimension, np.float32)
        with np.errstate(over="ignore"):  # infinite values are refused later, if used
            for place in self.places:
                out[place.span] = arrays[place.name].reshape(-1)
        return out

    def update(self, old: Arrays, new: Arrays) -> Update:
        """Return `new` minus `old` as a vector. Raises `ModelInvalid` if `new` has other arrays."""
        self._check_alike(new)
        out = np.empty(self.dimension, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for place in self.places:
                wide = np.promote_types(place.dtype, np.float32)
                after, before = (a[place.name].reshape(-1).astype(wide) for a in (new, old))
                out[place.span] = after - before
        return out

    def _check_alike(self, new: Arrays) -> None:
        known = {place.name for place in self.places} | set(self.kept)
        if set(new) != known:
            other = ", ".join(sorted(set(new) ^ known))
            raise ModelInvalid(f"the reply's arrays are not those received: {other}")
        for place in self.places:
            array = new[place.name]
            if array.shape != place.shape or str(array.dtype) not in AVERAGED:
                raise ModelInvalid(
                    f"the reply's array {place.name} has type {array.dtype} and shape "
                    f"{array.shape}; {place.dtype} and {place.shape} were received"
                )

    def moved(self, record: ArrayRecord, update: npt.NDArray[np.float64]) -> ArrayRecord:
        """Return the record's arrays plus the update. Arrays that stay at clients are unchanged.

        Raises `RoundVoid` if an entry of the result is not finite in its array's own type.
        """
        arrays = read(record)
        out: dict[str, Array] = dict(record.items())
        with np.errstate(over="ignore"):
            for place in self.places:
                part = update[place.span].reshape(place.shape)
                total = arrays[place.name].astype(np.float64) + part
                new = np.asarray(total, place.dtype)
                if not np.isfinite(new).all():
                    raise RoundVoid("report", 0, 0, f"the resulting {place.name} is not finite")
                out[place.name] = Array(new)
        return ArrayRecord(out)


def read(record: ArrayRecord) -> Arrays:
    """Return the arrays of a record. Raises `ModelInvalid` for one that NumPy cannot represent."""
    arrays: Arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = array.numpy()
        except (TypeError, ValueError, EOFError, OSError) as error:
            raise ModelInvalid(
                f"the array {name} of type {array.dtype} cannot be read: {error}"
            ) from None
        if arrays[name].dtype.kind == "V":  # NumPy's files hold bfloat16 as bytes without a type
            raise ModelInvalid(
                f"the arrays cannot be protected: {name} has type {array.dtype}, which NumPy does "
                f"not know; {', '.join(AVERAGED)} are averaged"
            )
    return arrays


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return True if one of the shell-style patterns matches the name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)

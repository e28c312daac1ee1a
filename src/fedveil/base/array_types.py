"""Type aliases for NumPy arrays, named by element type: `Float64s` is an array of float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.two_threads import by_halves

Array: TypeAlias = npt.NDArray[Any]
Bools: TypeAlias = npt.NDArray[np.bool_]
Float32s: TypeAlias = npt.NDArray[np.float32]
Float64s: TypeAlias = npt.NDArray[np.float64]
Int16s: TypeAlias = npt.NDArray[np.int16]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Uint8s: TypeAlias = npt.NDArray[np.uint8]
Uint16s: TypeAlias = npt.NDArray[np.uint16]
Uint32s: TypeAlias = npt.NDArray[np.uint32]
Uint64s: TypeAlias = npt.NDArray[np.uint64]
Int8s: TypeAlias = npt.NDArray[np.int8]
#: Signed integers of any size.
Signed: TypeAlias = npt.NDArray[np.signedinteger[Any]]

_PART = 1 << 16
_ODD = np.uint64(0x9E3779B97F4A7C15)


def parts(end: int, begin: int = 0) -> Iterator[slice]:
    """Yield slices of up to 65,536 entries that together cover the entries `begin` to `end` - 1."""
    for start in range(begin, end, _PART):
        yield slice(start, min(start + _PART, end))


def into_floats(numbers: Int64s, unit: float = 1.0, divisor: float = 1.0) -> Float64s:
    """Return numbers * unit / divisor as float64. The result overwrites the memory of `numbers`."""
    if numbers.dtype != np.int64:
        return numbers.astype(np.float64) * unit / divisor
    floats = numbers.view(np.float64)

    def convert(some: slice) -> None:
        scratch = np.empty(min(len(numbers), _PART))
        for part in parts(some.stop, some.start):
            held = scratch[: part.stop - part.start]
            np.multiply(numbers[part], unit, out=held)
            np.divide(held, divisor, out=floats[part])

    by_halves(len(numbers), convert)
    return floats


def without_masks(value: Any) -> Any:
    """Return a masked array of NumPy with NaN, or None if it has no numbers, for hidden cells.

    `np.asarray` would read the hidden cells. Returns any other `value` unchanged.
    """
    if not isinstance(value, np.ma.MaskedArray) or not np.ma.is_masked(value):
        return value
    missing: Any = np.nan if value.dtype.kind in "fiub" else np.array(None)
    return np.where(np.ma.getmaskarray(value), missing, value.data)


def without_na(cells: Array, missing: object) -> Array:
    """Return `cells` with `missing` in place of each pandas.NA."""
    if cells.dtype != object:
        return cells
    is_na = np.frompyfunc(lambda cell: type(cell).__name__ == "NAType", 1, 1)  # without pandas
    hidden = is_na(cells).astype(np.bool_)
    return np.where(hidden, np.array(missing, object), cells) if hidden.any() else cells


def row_values(rows: Uint8s) -> npt.NDArray[np.bytes_]:
    """Return each row as one NumPy bytes value, so that rows can be sorted and compared."""
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").reshape(-1)


def utf8(texts: npt.NDArray[np.str_]) -> list[bytes]:
    """Encode each text as UTF-8."""
    if len(texts) and np.ascontiguousarray(texts).view(np.uint32).max() < 128:
        encoded: list[bytes] = texts.astype("S").tolist()
        return encoded
    return [text.encode() for text in texts.tolist()]


def are_distinct(values: Array) -> bool:
    """Return True if no value occurs twice. `values` are texts or whole numbers."""
    keys = values
    if values.dtype.kind == "U" and len(values):
        keys = np.zeros(len(values), np.uint64)
        for letters in np.ascontiguousarray(values).view(np.uint32).reshape(len(values), -1).T:
            keys *= _ODD
            keys += letters
    keys = np.sort(keys)  # equal texts have equal keys, but different ones may have too
    return not (keys[1:] == keys[:-1]).any() or len(set(values.tolist())) == len(values)

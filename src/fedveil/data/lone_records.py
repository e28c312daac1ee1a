"""Reads training records one by one, so that an invalid record affects only itself.

Under `privacy.unit: example`, a record must influence only its own contribution. So the form of
records (`Form`) is known before any record is read. An invalid record stays in its place but has no
effect (`Examples.usable`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.base import own_code
from fedveil.base.array_types import Array, Bools, without_masks
from fedveil.base.example_arrays import (
    IGNORED,
    Targets,
    all_of,
    as_finite,
    as_whole,
    blank,
    is_plain,
    shape_of,
)
from fedveil.data.examples import Dataset, Examples
from fedveil.data.targets import check_derivable
from fedveil.errors import DataInvalid

#: NumPy's kinds of numbers, and the kinds of an array in which some record is no real number.
_NUMBERS, _READABLE = "fiub", "OUScm"


@dataclass(frozen=True)
class Form:
    """The form that every record must have, as the job states it.

    - `shape`: the shape of an example, and of its targets if these are tokens.
    - `outputs`: the number of classes, of different tokens, or of values per target.
    - `target_shape`: the shape of a target, for a user's own kind of targets.
    - `whole_targets`: True if a user's own targets are integers.
    - `whole`: True if examples are integers, which are not converted to floats.
    """

    shape: tuple[int, ...]
    targets: Targets
    outputs: int
    target_shape: tuple[int, ...] = ()
    whole_targets: bool = False
    whole: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> Form | None:
        """Return the form of a data set's test examples, or None if they are structured arrays.

        Examples with several inputs, or of different lengths, are structured arrays.
        """
        shape, y = shape_of(dataset.test.x), dataset.test.y
        if isinstance(shape, dict) or -1 in shape or not is_plain(y):
            return None
        whole_targets, whole = y.dtype.kind != "f", dataset.test.x.dtype.kind != "f"
        return cls(shape, dataset.targets, dataset.classes, y.shape[1:], whole_targets, whole)


def read(name: str, parts: Sequence[tuple[Any, Any]], form: Form) -> Examples:
    """Read training records one by one, so that an invalid record affects no other.

    A part in `parts` is a pair (x, y): the inputs and the targets of many records. If y is None,
    the targets are the next tokens of x. `name` is the data set's name, for error messages.
    """
    groups = [_examples(name, x, y, form) for x, y in parts]
    x = np.concatenate([group.x for group in groups])
    try:
        y = np.concatenate([group.y for group in groups])
    except ValueError as error:  # only a task's own targets can have several shapes
        raise DataInvalid(f"data {name}: clients' parts do not fit together: {error}") from None
    usable = np.concatenate([group.usable for group in groups if group.usable is not None])
    return Examples(x, y, usable)


def without_a_fault(examples: Examples) -> Examples:
    return Examples(examples.x, examples.y, np.ones(len(examples), np.bool_))


def described(usable: Bools) -> str | None:
    """Return a sentence with the number of unusable records, or None if all are usable."""
    unusable = np.flatnonzero(~usable)
    if not len(unusable):
        return None
    return (
        f"{len(unusable)} of {len(usable)} training examples have no effect, starting with "
        f"example {unusable[0]}: each cannot be read, contains something that is not a finite "
        "number, has a label or shape that the job does not have, or makes the model's fixed "
        "layers raise"
    )


def items(dataset: Any) -> tuple[list[Any], list[Any]]:
    """Return all x and all y of a map-style Dataset. An unusable item has None as x and as y."""
    x, y = list[Any](), list[Any]()
    for item in _each(dataset):
        try:
            with own_code.as_exceptions():
                one, learnt = item
        except Exception:
            one = learnt = None
        x.append(one)
        y.append(learnt)
    return x, y


def _each(records: Any) -> Iterator[Any]:
    """Yield the records of a sequence, and None for each record that raises an exception."""
    if not hasattr(records, "__getitem__"):
        yield from records
        return
    for index in range(len(records)):
        try:
            with own_code.as_exceptions():
                record = records[index]
        except Exception:  # it may read a damaged file
            record = None
        yield record


def _examples(name: str, x: Any, y: Any, form: Form) -> Examples:
    if y is None:
        check_derivable(form.targets, name, "y_train")
        return _next_tokens(name, x, form)
    rows, usable = _numbers(name, "x_train", x, [form.shape])
    learnt, has_target = _numbers(name, "y_train", y, *_target_shapes(form))
    if len(rows) != len(learnt):
        raise DataInvalid(
            f"data {name}: x_train has {len(rows)} examples and y_train has {len(learnt)} "
            "labels, but the numbers must be equal"
        )
    if not rows.size:
        raise DataInvalid(
            f"data {name}: x_train has shape {rows.shape}, but [examples, ...] without a zero is "
            "needed"
        )
    rows, fits = _inputs(rows, form)
    learnt, right = _targets(learnt, form)
    usable &= has_target & fits & right
    return Examples(blank(rows, usable), blank(learnt, usable), usable)


def _inputs(rows: Array, form: Form) -> tuple[Array, Bools]:
    """Return the examples `rows` as numbers for training, and a mask of the valid examples.

    Integers of at most 16 bits are returned unchanged, and are all valid. Other numbers are
    converted to int64 if `form.whole` is True, and to float32 otherwise. An example is invalid if
    int64 cannot represent all its numbers exactly, or if float32 makes one of them infinite or NaN.
    """
    if rows.dtype.kind != "f" and rows.dtype.itemsize <= 2:
        return rows, np.ones(len(rows), np.bool_)
    return as_whole(rows) if form.whole else as_finite(rows)


def _next_tokens(name: str, x: Any, form: Form) -> Examples:
    if len(form.shape) != 1:
        raise DataInvalid(
            f"data {name}: x_train comes without y, but its examples are not sequences of tokens"
        )
    rows, usable = _numbers(name, "x_train", x, [(form.shape[0] + 1,)])
    tokens, whole = as_whole(rows)
    usable &= whole & all_of((tokens >= 0) & (tokens < form.outputs))
    tokens = blank(tokens, usable)
    return Examples(tokens[:, :-1].copy(), tokens[:, 1:].copy(), usable)


def _target_shapes(form: Form) -> tuple[list[tuple[int, ...]], bool]:
    """Return the shapes that a target may have according to `form`, and True if others are allowed.

    Other shapes are allowed only for targets that are given as a NumPy array.
    """
    if form.targets == "class":
        return [()], False
    if form.targets in ("numbers", "bits"):
        return [(form.outputs,), *([()] if form.outputs == 1 else [])], False
    return [form.target_shape], True


def _numbers(
    name: str, part: str, value: Any, shapes: list[tuple[int, ...]], any_shape: bool = False
) -> tuple[Array, Bools]:
    """Return the records in `value` as one array, and a mask of the valid records.

    A valid record has one of `shapes`, and is reshaped to the first of them. If `any_shape` is True
    and `value` is an array of numbers, the records may have any shape, and keep it. If `value` is
    not an array of numbers, each record is converted separately, so that an invalid one affects no
    other. Raises `DataInvalid` if `value` cannot be divided into such records. `name` (the data
    set) and `part` (such as "x_train") are for error messages.
    """
    if isinstance(value, Mapping):
        raise DataInvalid(
            f"data {name}: {part} has several inputs, but privacy.unit = example takes only one "
            "array"
        )
    try:
        value = value.detach().cpu() if hasattr(value, "detach") else value
        value = without_masks(value)
        array = np.asarray(value) if hasattr(value, "__array__") else None
        records = list(_each(value)) if array is None else []
    except Exception as error:
        said = own_code.described(error)
        raise DataInvalid(f"data {name}: {part} is not an array: {said}") from None
    if array is not None and array.ndim:
        shape = array.shape[1:]
        if array.dtype.kind in _NUMBERS and (any_shape or shape in shapes):
            kept = shape if any_shape else shapes[0]
            return array.reshape(len(array), *kept), np.ones(len(array), np.bool_)
        if array.dtype.kind in _READABLE or len(array) == 1:  # with one record, its shape decides
            records, array = list(array), None
    if array is not None:
        raise DataInvalid(
            f"data {name}: {part} has dtype {array.dtype} and shape {array.shape}, but numbers "
            f"of shape {(len(array) if array.ndim else 0, *shapes[0])} are needed"
        )
    rows = np.zeros((len(records), *shapes[0]), np.longdouble)  # exact for float64 and int64
    usable = np.ones(len(records), np.bool_)
    for i, record in enumerate(records):
        found = _record(record, shapes)
        usable[i] = found is not None
        rows[i] = 0 if found is None else found
    return rows, usable


def _record(value: Any, shapes: list[tuple[int, ...]]) -> Array | None:
    """Return one record as numbers, or None if it is not numeric or has none of the `shapes`."""
    try:
        value = without_masks(value)
        with own_code.as_exceptions():
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.dtype.kind not in _NUMBERS + _READABLE or array.shape not in shapes:
            return None
        if array.dtype.kind == "c":
            if array.imag.any():
                return None
            array = array.real
        with np.errstate(all="ignore"):
            return array.astype(np.longdouble).reshape(shapes[0])
    except Exception:  # no numbers, or lists of different lengths
        return None


def _targets(array: Array, form: Form) -> tuple[Array, Bools]:
    if form.targets == "own":
        return as_whole(array) if form.whole_targets else as_finite(array)
    if form.targets in ("numbers", "bits"):
        rows, right = as_finite(array)
        return rows, right & (all_of(np.isin(rows, (0, 1))) if form.targets == "bits" else True)
    rows, right = as_whole(array)
    if form.targets == "tokens":
        return rows, right & _are_tokens(rows, form.outputs)
    return rows, right & (rows >= 0) & (rows < form.outputs)


def _are_tokens(rows: Array, tokens: int) -> Bools:
    return all_of((rows == IGNORED) | ((rows >= 0) & (rows < tokens)))

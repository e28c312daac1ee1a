"""Checks targets by their kind, and counts the model outputs that they need."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from fedveil.base.array_types import Array, Float32s, Int64s
from fedveil.base.example_arrays import IGNORED, Targets, is_plain, is_ragged, items, ragged, values
from fedveil.data import inputs
from fedveil.errors import DataInvalid, FedveilWarning


def checked(kind: Targets, name: str, part: str, value: Any) -> Array:
    """Return a user's targets `value` as an array, after checking that they are targets of `kind`.

    Raises `DataInvalid` if they are not. `name` (the data set) and `part` (such as "y_train") are
    for error messages.
    """
    array = inputs.as_array(name, part, value)
    if kind == "own":
        return inputs.checked(name, part, array, alone=False)
    if kind == "tokens":
        return _tokens(name, part, array)
    if not is_plain(array):
        raise DataInvalid(
            f"data {name}: {part} is not a plain array, but [examples] or more dimensions are "
            f"needed{_ANY_SHAPE}"
        )
    return _labels(name, part, array) if kind == "class" else _rows(kind, name, part, array)


#: End of an error sentence, which says how to use labels of another shape.
_ANY_SHAPE = '. For another shape, use a task of your own with targets = "own"'


def outputs(kind: Targets, name: str, parts: list[Array], declared: Any) -> int:
    """Return the number of model outputs that the data set `name` needs.

    `declared` is the number that the data set itself states, or None. `parts` are its arrays of
    targets, and of inputs with the same tokens. `kind` is the kind of the targets:

    - "numbers" and "bits" (truth values) need one output for each column of the targets.
    - "class" and "tokens" need `declared` outputs. If it is None, they need one more than the
      largest class or token in `parts`.
    - "own" (targets for a user's own task) need `declared` outputs, or 1 if it is None.

    Raises `DataInvalid` if `parts` contradict `declared`. If `declared` is None, warns if label 0
    or most classes below the largest have no example: the labels then probably have gaps.
    """
    declared = None if declared is None else _whole(name, declared)
    if kind in ("numbers", "bits"):
        widths = {part.shape[1] for part in parts}
        if len(widths) > 1 or declared not in (None, *widths):
            raise DataInvalid(
                f"data {name}: y_train and y_test have {' and '.join(map(str, widths))} columns, "
                f"but {declared or 'equally many'} are needed"
            )
        return int(widths.pop())
    if kind == "own":
        return 1 if declared is None else declared
    if kind == "class" and declared is None:
        _note_missing_classes(name, parts)
    return _classes(name, declared, max(int(values(part).max()) for part in parts))


def _note_missing_classes(name: str, parts: list[Array]) -> None:
    """Warn if label 0, or most classes below the largest label, have no example in `parts`."""
    found = np.unique(np.concatenate([np.unique(values(part)) for part in parts]))
    classes = int(found[-1]) + 1
    if found[0] != 0:
        what = (
            "no example has label 0. Labels count from 0, so the model has an output for a class "
            "that never occurs"
        )
    elif 2 * len(found) < classes:
        what = (
            f"the labels reach {classes - 1:,}, but only {len(found):,} different ones occur. "
            "`numpy.unique(labels, return_inverse=True)` numbers labels without gaps. The model "
            "has outputs for classes that never occur"
        )
    else:
        return
    warnings.warn(f"data {name}: {what}", FedveilWarning, stacklevel=4)


def check_derivable(kind: Targets, name: str, part: str) -> None:
    """Raise `DataInvalid` unless `kind` is "tokens": only these targets follow from the examples.

    `name` (the data set) and `part` (such as "y_train") are for the error message.
    """
    if kind != "tokens":
        raise DataInvalid(
            f"data {name}: {part} is None, but only the targets of task = next_token follow from "
            "x. Return a target for each example"
        )


def next_tokens(name: str, part: str, x: Array) -> tuple[Array, Array]:
    """Split each example in `x`, a sequence of tokens, into inputs and next-token targets.

    Returns the inputs, which are all tokens but the last, and the targets, which are all tokens but
    the first. Raises `DataInvalid` if an example has fewer than two tokens. `name` (the data set)
    and `part` (such as "x_train") are for error messages.
    """
    _tokens(name, part, x, ignored=False)
    if is_plain(x):
        if x.ndim != 2 or x.shape[1] < 2:
            raise DataInvalid(
                f"data {name}: {part} has shape {x.shape}, but [examples, tokens] is needed"
            )
        return x[:, :-1], x[:, 1:].astype(np.int64)
    examples = items(x)
    short = [i for i, example in enumerate(examples) if len(example) < 2]
    if short:
        raise DataInvalid(
            f"data {name}: example {short[0]} of {part} has fewer than two tokens, but the task "
            "is to predict the next one"
        )
    return ragged([e[:-1] for e in examples]), ragged([e[1:] for e in examples])


def _tokens(name: str, part: str, array: Array, *, ignored: bool = True) -> Array:
    """Check that `array` has only tokens (whole numbers from 0), and return it.

    An ordinary array becomes int64. A structured array, whose examples differ in length, is
    returned unchanged. If `ignored` is True, `IGNORED` may stand in place of a token, to exclude it
    from the loss. Raises `DataInvalid` for an invalid array. `name` (the data set) and `part` (such
    as "x_train") are for error messages.
    """
    whole = is_plain(array) or is_ragged(array.dtype)
    tokens = values(array) if whole else array
    if not array.ndim:
        raise DataInvalid(f"data {name}: {part} is one token, but [examples, tokens] is needed")
    if not whole or tokens.dtype.kind not in "iu":
        raise DataInvalid(
            f"data {name}: {part} has dtype {tokens.dtype}, but tokens are whole numbers"
        )
    wrong = ((tokens < 0) | (tokens >= 2**31)) & ~((tokens == IGNORED) & ignored)
    if wrong.any():
        raise DataInvalid(
            f"data {name}: {part} holds {tokens[wrong][0]}, but a token is a whole number from 0"
            + (f", or {IGNORED} to learn nothing there" if ignored else "")
        )
    return array.astype(np.int64) if is_plain(array) else array


def _rows(kind: Targets, name: str, part: str, array: Array) -> Float32s:
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise DataInvalid(
            f"data {name}: {part} has shape {array.shape}, but [examples] or [examples, outputs] "
            f"is needed{_ANY_SHAPE}"
        )
    y: Float32s = inputs.checked(name, part, array).astype(np.float32)
    if kind == "bits" and not np.isin(y, (0, 1)).all():
        first = int(np.argmin(np.isin(y, (0, 1)).all(axis=1)))
        raise DataInvalid(f"data {name}: {part} holds values other than 0 and 1 at example {first}")
    return y


def _flattened(array: Array) -> str:
    """Return a hint on how to turn an array with one column, or one-hot rows, into labels."""
    if array.ndim == 2 and array.shape[1] == 1:
        return ": return y[:, 0]"
    real = array.ndim == 2 and array.size > 0 and array.dtype.kind in "fiub"
    if real and np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all():
        return ": return y.argmax(axis=1) in place of a one-hot code"
    return ""


def _labels(name: str, part: str, array: Array) -> Int64s:
    if array.ndim != 1 or len(array) == 0:
        raise DataInvalid(
            f"data {name}: {part} has shape {array.shape}, but [examples] is needed"
            f"{_flattened(array)}{_ANY_SHAPE}"
        )
    if array.dtype.kind not in "fiub":
        words = "; `numpy.unique(labels, return_inverse=True)` numbers labels that are texts"
        raise DataInvalid(
            f"data {name}: {part} has dtype {array.dtype}, but whole numbers are needed"
            + (words if array.dtype.kind in "UO" else "")
        )
    with np.errstate(over="ignore"):  # as float16, 2**31 is infinite
        wrong = ~((array >= 0) & (array < 2**31))  # written so that NaN is wrong too
    if array.dtype.kind == "f":
        wrong |= array != np.floor(array)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataInvalid(
            f"data {name}: {part} holds {array[first]} at {inputs.place_of(wrong)}, but a label "
            "is a whole number from 0"
        )
    return array.astype(np.int64)


def _classes(name: str, classes: int | None, highest: int) -> int:
    classes = highest + 1 if classes is None else classes
    if classes < 2:
        raise DataInvalid(f"data {name}: classes = {classes}, but at least 2 are needed")
    if classes <= highest:
        raise DataInvalid(
            f"data {name}: the label {highest} is outside [0, {classes}): there are {classes} "
            "classes"
        )
    return classes


def _whole(name: str, classes: Any) -> int:
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 0:
        shown = " ".join(repr(classes).split())
        raise DataInvalid(f"data {name}: classes = {shown} is not a whole number")
    return int(classes)

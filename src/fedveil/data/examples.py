"""Examples with labels, and the checks that every data set passes, whoever made it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fedveil._arrays import Array, Float32s, Int64s
from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid

Features: TypeAlias = Float32s
Labels: TypeAlias = Int64s

#: Of every class, `holdout` sets one example in this many aside for testing.
_TEST_ONE_IN = 5
#: Every whole number up to this is a float32.
_EXACT_IN_FLOAT32 = 1 << 24


@dataclass(frozen=True, eq=False)
class Examples:
    """`x[i]` is an example, finite numbers; `y[i]` is its class, from 0.

    Images of the built-in sets have the shape [1, 28, 28] and values in [-1, 1].
    """

    x: Features
    y: Labels

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of one shape.

    `owners[i]` is the client that owns training example i, numbered from 0 without gaps; None
    where the data has no owners.
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    owners: Labels | None = None

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.train.x.shape[1:]


def centred(pixels: Any) -> Features:
    """Pixels in [0, 1] as values in [-1, 1]: around zero a net learns in fewer rounds."""
    return 2 * np.asarray(pixels, np.float32) - 1


def make_dataset(
    name: str,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    *,
    classes: int | None = None,
    owners: Any = None,
) -> Dataset:
    """A checked data set from pairs of arrays; raises `DataInvalid` with the first thing wrong.

    The number of classes is one more than the largest label where it is not given. Values are
    kept as they are: nothing is scaled.
    """
    parts = {
        part: Examples(_features(name, f"x_{part}", x), _labels(name, f"y_{part}", y))
        for part, (x, y) in (("train", train), ("test", test))
    }
    for part, examples in parts.items():
        if len(examples.x) != len(examples.y):
            raise DataInvalid(
                f"data {name}: x_{part} has {len(examples.x)} examples and y_{part} has "
                f"{len(examples.y)} labels, as many are needed"
            )
    shapes = {part: examples.x.shape[1:] for part, examples in parts.items()}
    if shapes["train"] != shapes["test"]:
        raise DataInvalid(
            f"data {name}: an example of x_train has shape {shapes['train']} and one of x_test "
            f"{shapes['test']}, the same is needed"
        )
    highest = max(int(examples.y.max()) for examples in parts.values())
    return Dataset(
        name,
        parts["train"],
        parts["test"],
        _classes(name, classes, highest),
        None if owners is None else _owners(name, owners, len(parts["train"])),
    )


def _features(name: str, part: str, values: Any) -> Features:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DataInvalid(f"data {name}: {part} has dtype {array.dtype}, real numbers are needed")
    if array.ndim < 2 or array.size == 0:
        raise DataInvalid(
            f"data {name}: {part} has shape {array.shape}, [examples, ...] without a zero is needed"
        )
    if array.dtype.kind in "iu" and max(int(array.max()), -int(array.min())) > _EXACT_IN_FLOAT32:
        raise DataInvalid(
            f"data {name}: {part} holds whole numbers beyond 2^24, which float32 cannot tell apart"
        )
    with np.errstate(over="ignore"):  # what overflows float32 is found as infinity below
        x = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(x).all():
        first = int(np.argmin(np.isfinite(x).reshape(len(x), -1).all(axis=1)))
        raise DataInvalid(
            f"data {name}: {part} holds NaN or infinity (in float32) at example {first}, "
            f"finite numbers are needed"
        )
    return x


def _labels(name: str, part: str, values: Any) -> Labels:
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise DataInvalid(f"data {name}: {part} has shape {array.shape}, [examples] is needed")
    if array.dtype.kind not in "fiub":
        raise DataInvalid(f"data {name}: {part} has dtype {array.dtype}, whole numbers are needed")
    wrong = ~((array >= 0) & (array < 2**31))  # so that NaN is wrong too
    if array.dtype.kind == "f":
        wrong |= array != np.floor(array)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataInvalid(
            f"data {name}: {part} holds {array[first]} at example {first}, a label is a whole "
            f"number from 0"
        )
    return array.astype(np.int64)


def _classes(name: str, classes: Any, highest: int) -> int:
    if classes is None:
        classes = highest + 1
    elif isinstance(classes, bool) or not isinstance(classes, int | np.integer):
        raise DataInvalid(f"data {name}: classes = {classes!r} is not a whole number")
    if classes < 2:
        raise DataInvalid(f"data {name}: classes = {classes}, at least 2 are needed")
    if classes <= highest:
        raise DataInvalid(
            f"data {name}: the label {highest} is outside [0, {classes}), there are {classes} "
            f"classes"
        )
    return int(classes)


def _owners(name: str, owners: Any, count: int) -> Labels:
    try:
        codes = owner_codes(owners)
    except ValueError as error:
        raise DataInvalid(f"data {name}: client_ids {error}") from None
    if len(codes) != count:
        raise DataInvalid(
            f"data {name}: client_ids has {len(codes)} entries and x_train has {count} examples, "
            f"as many are needed"
        )
    return codes


def owner_codes(owners: Any) -> Labels:
    """Number the owners 0..k-1 in sorted order and say each example's number.

    Owners are whole numbers or strings, not both; strings sort by code point. Raises ValueError,
    with the end of a sentence, for anything else.
    """
    array = np.asarray(owners) if hasattr(owners, "__array__") else None
    if array is not None and array.ndim != 1:
        raise ValueError(f"has shape {array.shape}, [examples] is needed")
    if array is not None and array.dtype.kind in "iu":
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    if array is None and not isinstance(owners, Iterable):
        raise ValueError(f"is of type {type(owners).__name__}, a list is needed")
    values: list[Any] = list(owners) if array is None else array.tolist()
    whole = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values)
    if not whole and not all(isinstance(v, str) for v in values):
        raise ValueError("must be whole numbers alone or strings alone")
    number = {owner: code for code, owner in enumerate(sorted(set(values)))}
    return np.array([number[owner] for owner in values], np.int64)


def held_out(name: str, x: Array, labels: Array, classes: int) -> Dataset:
    """A checked data set of examples without a test part: `holdout` sets one aside."""
    train, test = holdout(name, labels)
    return make_dataset(name, (x[train], labels[train]), (x[test], labels[test]), classes=classes)


def holdout(name: str, labels: Array) -> tuple[Labels, Labels]:
    """Which examples train and which test, where a data set comes without a test part.

    Of each class a fifth, rounded to the nearest, tests: a fixed choice that depends on the name
    and the labels alone, never on a run's seed. Both parts keep the order of the file.
    """
    order = Seeded(0, "holdout", name).permutation(len(labels))
    testing = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        testing[members[: (len(members) + _TEST_ONE_IN // 2) // _TEST_ONE_IN]] = True
    return np.flatnonzero(~testing), np.flatnonzero(testing)

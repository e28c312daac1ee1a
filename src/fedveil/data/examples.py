"""Examples with targets, and the checks that every data set must pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fedveil.base import own_code
from fedveil.base.array_types import Array, Bools, Float32s, Int64s, without_masks
from fedveil.base.example_arrays import Shape, Targets, alike, is_plain, is_ragged, shape_of, values
from fedveil.data import inputs
from fedveil.data.targets import check_derivable, checked, next_tokens, outputs
from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid

Features: TypeAlias = Array
Labels: TypeAlias = Int64s

#: `holdout` reserves one of this many examples of every class for testing.
_TEST_ONE_IN = 5


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples `x` with their targets `y`.

    `x[i]` is an example of finite numbers. `y[i]` is its class, from 0, or another target. Examples
    with several inputs, or of different lengths, are structured arrays (`example_arrays`). If
    `usable[i]` is False, record i was invalid: it is replaced by zeros and has no effect.
    """

    x: Features
    y: Array
    usable: Bools | None = None

    def __len__(self) -> int:
        return len(self.y)

    def of(self, rows: Array | slice) -> Examples:
        usable = None if self.usable is None else self.usable[rows]
        return Examples(self.x[rows], self.y[rows], usable)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of one shape.

    `classes` is the number of outputs that a model needs. `owners[i]` is the client that owns
    training example i, numbered from 0 without gaps. `owners` is None if the data has no owners.
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    owners: Labels | None = None
    targets: Targets = "class"

    @property
    def example_shape(self) -> Shape:
        """The shape of one example, or of each of its inputs."""
        return shape_of(self.train.x)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one example's target. It is empty if targets have different lengths."""
        return self.test.y.shape[1:]

    @property
    def labels(self) -> Labels | None:
        """The classes of the training examples, or None if the targets are not classes."""
        return self.train.y if self.targets == "class" else None


def centred(pixels: Any) -> Float32s:
    """Map pixels from [0, 1] to [-1, 1]: networks learn faster from values around zero."""
    return 2 * np.asarray(pixels, np.float32) - 1


def make_dataset(
    name: str,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    *,
    classes: int | None = None,
    owners: Any = None,
    targets: Targets = "class",
) -> Dataset:
    """Check pairs of arrays (x, y) and return them as a data set.

    `train` and `test` are such pairs. If a pair's y is None, the targets are the next tokens of x.
    By default, `classes` is one more than the largest label. `owners` has the owner of each
    training example. `targets` is the kind of the targets. Raises `DataInvalid` if an array is
    invalid, or if the arrays do not fit together.
    """
    parts = {
        part: _examples(name, part, x, y, targets)
        for part, (x, y) in (("train", train), ("test", test))
    }
    with suppress(ValueError):  # the checks below report shapes that do not fit
        parts = _alike(parts)
    shapes = {part: shape_of(examples.x) for part, examples in parts.items()}
    learnt = _learnt(parts["train"], train[1], targets, classes)
    learnt += _learnt(parts["test"], test[1], targets, classes)
    if shapes["train"] != shapes["test"]:
        raise DataInvalid(
            f"data {name}: an example of x_train has shape {shapes['train']} and one of x_test "
            f"{shapes['test']}, but they must be equal"
        )
    return Dataset(
        name,
        parts["train"],
        parts["test"],
        outputs(targets, name, learnt, classes),
        None if owners is None else checked_owners(name, owners, len(parts["train"])),
        targets,
    )


def of_tests(name: str, x: Any, y: Any, *, classes: int | None, targets: Targets) -> Dataset:
    """Check the test examples `x` with targets `y`, and return them as a data set.

    The data set's training part has the same examples, so the caller must replace it. `targets` is
    the kind of the targets, such as "class".
    """
    test = _examples(name, "test", x, y, targets)
    count = outputs(targets, name, _learnt(test, y, targets, classes), classes)
    return Dataset(name, test, test, count, None, targets)


def _learnt(examples: Examples, y: Any, targets: Targets, classes: int | None) -> list[Array]:
    """Return the arrays from which `outputs` derives the number of model outputs.

    These are the targets. The inputs are added if they have tokens of the same vocabulary as the
    targets. They do if the targets were made from the inputs, which is the case if `y`, the user's
    targets, is None. They are assumed to if the targets are tokens, the inputs are integers, and
    `classes` is None.
    """
    x = examples.x
    undeclared = targets == "tokens" and classes is None and (is_plain(x) or is_ragged(x.dtype))
    tokens = y is None or (undeclared and values(x).dtype.kind in "iu")
    return [x, examples.y] if tokens else [examples.y]


def _examples(name: str, part: str, x: Any, y: Any, targets: Targets) -> Examples:
    rows = inputs.checked(name, f"x_{part}", inputs.as_array(name, f"x_{part}", x))
    if y is None:
        check_derivable(targets, name, f"y_{part}")
        return Examples(*next_tokens(name, f"x_{part}", rows))
    learnt = checked(targets, name, f"y_{part}", y)
    if len(rows) != len(learnt):
        raise DataInvalid(
            f"data {name}: x_{part} has {len(rows)} examples and y_{part} has {len(learnt)} "
            "labels, but the numbers must be equal"
        )
    return Examples(rows, learnt)


def _alike(parts: Mapping[str, Examples]) -> dict[str, Examples]:
    x = alike([examples.x for examples in parts.values()])
    y = alike([examples.y for examples in parts.values()])
    return {part: Examples(x[i], y[i]) for i, part in enumerate(parts)}


def checked_owners(name: str, owners: Any, count: int) -> Labels:
    """Number the owners 0..k-1 in sorted order, and return the number of each example's owner.

    Raises `DataInvalid` unless `owners` has `count` entries, one for each example, which are all
    integers or all strings. `name` is the data set's name, for the error message.
    """
    try:
        codes = owner_codes(owners)
    except ValueError as error:
        raise DataInvalid(f"data {name}: client_ids {error}") from None
    if len(codes) != count:
        raise DataInvalid(
            f"data {name}: client_ids has {len(codes)} entries and x_train has {count} examples, "
            "but the numbers must be equal"
        )
    return codes


def owner_codes(owners: Any) -> Labels:
    """Number the owners 0..k-1 in sorted order. Returns the number of each example's owner.

    Raises ValueError unless all owners are integers, or all are strings.
    """
    owners = without_masks(owners)
    try:
        array = np.asarray(owners) if hasattr(owners, "__array__") else None
    except Exception as error:  # an object's own __array__
        raise ValueError(f"is not an array: {own_code.described(error)}") from None
    if array is not None and array.ndim != 1:
        raise ValueError(f"has shape {array.shape}, but [examples] is needed")
    if array is not None and array.dtype.kind in "iu":
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    if array is None and not isinstance(owners, Iterable):
        raise ValueError(f"is of type {type(owners).__name__}, but a list is needed")
    values: list[Any] = list(owners) if array is None else array.tolist()
    whole = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values)
    if not whole and not all(isinstance(v, str) for v in values):
        raise ValueError("must be only whole numbers or only strings")
    number = {owner: code for code, owner in enumerate(sorted(set(values)))}
    return np.array([number[owner] for owner in values], np.int64)


def held_out(name: str, x: Array, labels: Array, classes: int) -> Dataset:
    """Check examples `x` and return them as a data set. `holdout` chooses the test examples."""
    train, test = holdout(name, labels)
    return make_dataset(name, (x[train], labels[train]), (x[test], labels[test]), classes=classes)


def holdout(name: str, labels: Array) -> tuple[Labels, Labels]:
    """Choose test examples for a set without a test part. Returns the training and test indices.

    20% of each class, rounded to the nearest integer, is for testing. The choice depends only on
    the name and the labels, never on a run's seed. Both parts keep the order of the file.
    """
    order = Seeded(0, "holdout", name).permutation(len(labels))
    testing = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        testing[members[: (len(members) + _TEST_ONE_IN // 2) // _TEST_ONE_IN]] = True
    return np.flatnonzero(~testing), np.flatnonzero(testing)

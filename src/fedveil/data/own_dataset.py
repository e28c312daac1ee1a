"""A user's own data, from a function that `package.module:function` names.

The function takes no arguments and returns one of

    (x_train, y_train, x_test, y_test)              arrays, or what NumPy makes arrays of
    {"x_train": ..., "y_train": ..., "x_test": ..., "y_test": ..., "client_ids": ..., "classes": 3}
    (train, test) or (train, test, client_ids)      map-style torch Datasets of (x, y) items

where client_ids says which client owns each training example, and it and classes may be left out.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedveil import own_code
from fedveil._arrays import Array
from fedveil.data.examples import Dataset, make_dataset
from fedveil.errors import DataInvalid

_REQUIRED = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL = ("client_ids", "classes")
_ALLOWED = (
    "four arrays (x_train, y_train, x_test, y_test), a mapping with those keys, or two map-style "
    "Datasets (train, test) and, if wanted, the client_ids"
)


def read(name: str) -> Dataset:
    """Call the function that `name` names and check what it returns; raises `DataInvalid`."""
    key = f"data {name}"
    with _current_folder_importable():
        function = own_code.load(name, key=key, error=DataInvalid)
        with own_code.told(key, DataInvalid):
            result = function()
        parts = _parts(name, result)
    return make_dataset(
        name,
        (parts["x_train"], parts["y_train"]),
        (parts["x_test"], parts["y_test"]),
        classes=parts.get("classes"),
        owners=parts.get("client_ids"),
    )


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    folder = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def _parts(name: str, result: Any) -> dict[str, Any]:
    """What the function returned, by name; only client_ids and classes may be missing."""
    if isinstance(result, Mapping):
        return _from_mapping(name, result)
    if isinstance(result, tuple | list) and len(result) == len(_REQUIRED):
        return {key: _array(name, key, value) for key, value in zip(_REQUIRED, result, strict=True)}
    if isinstance(result, tuple | list) and len(result) in (2, 3):
        parts = dict(zip(_REQUIRED, _stacked(name, "train", result[0]), strict=False))
        parts["x_test"], parts["y_test"] = _stacked(name, "test", result[1])
        return parts | dict(zip(_OPTIONAL, result[2:], strict=False))
    raise DataInvalid(f"data {name}: the function returned {_described(result)}, not {_ALLOWED}")


def _from_mapping(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    missing = [key for key in _REQUIRED if key not in result]
    unknown = [str(key) for key in result if key not in _REQUIRED + _OPTIONAL]
    if missing or unknown:
        problem = f"lacks {missing[0]}" if missing else f"holds {unknown[0]}"
        raise DataInvalid(
            f"data {name}: the mapping that the function returned {problem}, the keys are "
            f"{', '.join(_REQUIRED)} and, if wanted, {' and '.join(_OPTIONAL)}"
        )
    return {key: _array(name, key, result[key]) for key in _REQUIRED} | {
        key: result[key] for key in _OPTIONAL if key in result
    }


def _described(result: Any) -> str:
    if isinstance(result, tuple | list):
        return f"a {type(result).__name__} of {len(result)}"
    return f"an object of type {type(result).__name__}"


def _array(name: str, part: str, value: Any) -> Array:
    """`value` as an array; a torch tensor is recognised by its methods, without torch."""
    try:
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception as error:  # a ragged list, or whatever an object's own __array__ raises
        raise DataInvalid(
            f"data {name}: {part} is not an array: {own_code.described(error)}"
        ) from None


def _stacked(name: str, part: str, dataset: Any) -> tuple[Array, Array]:
    """All items of a map-style Dataset, which has a length and is indexed by whole numbers."""
    is_map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not is_map_style or isinstance(dataset, tuple | list | Mapping | np.ndarray):
        raise DataInvalid(
            f"data {name}: the function returned {_described(dataset)} for {part}, not a "
            f"map-style Dataset; allowed are {_ALLOWED}"
        )
    examples, labels = [], []
    for index in range(len(dataset)):
        with own_code.told(f"data {name}", DataInvalid, f"item {index} of the {part} Dataset"):
            item = dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataInvalid(
                f"data {name}: item {index} of the {part} Dataset is {_described(item)}, a pair "
                f"(x, y) is needed"
            )
        examples.append(_array(name, f"x of item {index} of the {part} Dataset", item[0]))
        labels.append(_array(name, f"y of item {index} of the {part} Dataset", item[1]))
        if examples[-1].shape != examples[0].shape or labels[-1].shape != ():
            raise DataInvalid(
                f"data {name}: item {index} of the {part} Dataset has an x of shape "
                f"{examples[-1].shape} and a y of shape {labels[-1].shape}, {examples[0].shape} as "
                f"in item 0 and one number are needed"
            )
    return np.array(examples), np.array(labels)

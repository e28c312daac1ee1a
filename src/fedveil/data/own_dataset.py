"""A user's own data, from a function that the job names as `package.module:function`.

The function takes no arguments and returns one of

    (x_train, y_train, x_test, y_test)              arrays, or anything NumPy makes arrays of
    {"x_train": ..., "y_train": ..., "x_test": ..., "y_test": ..., "client_ids": ..., "classes": 3}
    {"clients": {"a": part, "b": part}, "test": part, "classes": 3}
    (train, test) or (train, test, client_ids)      map-style torch Datasets of (x, y) items

`client_ids` names the client that owns each training example. `client_ids` and `classes` are
optional. A part is a pair (x, y) or a map-style Dataset. An x may be a mapping of several inputs,
or a list of arrays of different lengths. If the task predicts the next token, y may be omitted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedveil.base import own_code
from fedveil.base.array_types import Array
from fedveil.base.example_arrays import Targets, is_plain, stacked
from fedveil.data import lone_records
from fedveil.data.examples import Dataset, Examples, checked_owners, make_dataset, of_tests
from fedveil.data.inputs import as_array
from fedveil.data.lone_records import Form
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import shown

_REQUIRED = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL = ("client_ids", "classes")
_BY_CLIENT = ("clients", "test")
_ALLOWED = (
    "four arrays (x_train, y_train, x_test, y_test), a mapping with those keys, or two "
    "map-style Datasets (train, test) and optionally the client_ids"
)


def read(name: str, targets: Targets = "class") -> Dataset:
    """Call the function `name` and return its result as a data set.

    `targets` is the kind of the targets, such as "class". Raises `DataInvalid` if the function
    fails, or if its result is not a valid data set.
    """
    with _current_folder_importable():
        return _whole(name, _parts(name, _called(name), targets), targets)


def read_apart(name: str, targets: Targets) -> Dataset:
    """Return the same data set as `read`, but read each training record separately.

    Every record must have the same form as the test examples (`lone_records`). If the test examples
    have several inputs or different lengths, all records are read together. `targets` is the kind
    of the targets, such as "class".
    """
    with _current_folder_importable():
        result = _called(name)
        groups, rest = _apart(name, result, targets, tested=True)
        test, classes = (rest["x_test"], rest["y_test"]), rest.get("classes")
        public = of_tests(name, *test, classes=classes, targets=targets)
        form = Form.of(public)
        if form is None:
            _check_targets(name, public)
            return _whole(name, _parts(name, result, targets), targets)
        train = lone_records.read(name, groups, form)
    ids = rest.get("client_ids")
    owners = None if ids is None else checked_owners(name, ids, len(train))
    return replace(public, train=train, owners=owners)


def _check_targets(name: str, public: Dataset) -> None:
    """Raise `DataInvalid` if the test examples are one ordinary array, but their targets are not.

    `public` is the data set of the test part. Targets are no ordinary array if each of them has
    several arrays, or if their lengths differ.
    """
    if is_plain(public.test.x) and not is_plain(public.test.y):
        raise DataInvalid(
            f"data {name}: y_test has several arrays or lengths, but privacy.unit = example needs "
            "targets of one array and one shape. Use unit client"
        )


def read_records(name: str, form: Form) -> Examples:
    """Return only the training records of the user's function `name`, converted to `form`."""
    with _current_folder_importable():
        groups, _ = _apart(name, _called(name), form.targets, tested=False)
        return lone_records.read(name, groups, form)


def count_records(name: str, targets: Targets) -> int:
    """Count the training records that the function `name` returns, without reading any of them.

    `targets` is the kind of the targets, such as "class".
    """
    with _current_folder_importable():
        groups, _ = _apart(name, _called(name), targets, tested=False)
        return sum(_count(name, "x_train", x) for x, _ in groups)


def _called(name: str) -> Any:
    key = f"data {name}"
    function = own_code.load(name, key=key, error=DataInvalid)
    with own_code.own_code_errors(key, DataInvalid):
        result = function()
        _check_columns(name, result)
        return result


def _check_columns(name: str, result: Any) -> None:
    """Raise `DataInvalid` if the function's DataFrames have different columns, or another order.

    As arrays, they would have the same shape, so the model would take one column for another.
    """
    frames = [
        (part, [str(column) for column in x.columns])
        for part, x in _examples_of(result)
        if hasattr(x, "columns") and hasattr(x, "to_numpy")
    ]
    for part, columns in frames[:-1]:
        last, expected = frames[-1]
        for number, (column, other) in enumerate(zip(columns, expected, strict=False), 1):
            if column != other:
                raise DataInvalid(
                    f"data {name}: column {number} is {shown(column)} in {part} and "
                    f"{shown(other)} in {last}, but all need the same columns in one order"
                )


def _examples_of(result: Any) -> list[tuple[str, Any]]:
    """Return the names and the examples x of the parts of `result`, where it has pairs (x, y).

    The test part is last. Parts that are Datasets, or of another form, are left out.
    """
    if isinstance(result, Mapping) and "clients" in result:
        clients = result["clients"]
        if isinstance(clients, tuple | list):
            clients = dict(enumerate(clients))
        each = clients.items() if isinstance(clients, Mapping) else ()
        pairs = [(f"x of client {client}", part) for client, part in each]
        pairs.append(("x of test", result.get("test")))
        return [(part, v[0]) for part, v in pairs if isinstance(v, tuple | list) and v]
    if isinstance(result, Mapping):
        return [(part, result.get(part)) for part in ("x_train", "x_test")]
    if isinstance(result, tuple | list) and len(result) == len(_REQUIRED):
        return [("x_train", result[0]), ("x_test", result[2])]
    return []


def _whole(name: str, parts: dict[str, Any], targets: Targets) -> Dataset:
    return make_dataset(
        name,
        (parts["x_train"], parts["y_train"]),
        (parts["x_test"], parts["y_test"]),
        classes=parts.get("classes"),
        owners=parts.get("client_ids"),
        targets=targets,
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


def _apart(
    name: str, result: Any, targets: Targets, *, tested: bool
) -> tuple[list[tuple[Any, Any]], dict[str, Any]]:
    """Split `result`, which the user's function returned, into training records and the rest.

    Returns a list and a mapping. The list has pairs (x, y): the inputs and the targets of many
    records, not yet read. It has a pair for each client if the data are given by client, otherwise
    one pair. The mapping has the rest: x_test, y_test, client_ids and classes. If `tested` is
    False, x_test and y_test may be missing. `targets` is the kind of the targets, such as "class".
    `name` is the function's name, for error messages.
    """
    if isinstance(result, Mapping) and "clients" in result:
        clients = _clients(name, result)
        groups = [_pair(name, f"client {c}", p, targets, alone=True) for c, p in clients.items()]
        each = zip(clients, groups, strict=True)
        sizes = [_count(name, f"x of client {client}", x) for client, (x, _) in each]
        owners = [client for client, size in zip(clients, sizes, strict=True) for _ in range(size)]
        rest = {"client_ids": owners, "classes": result.get("classes")}
        test = partial(_pair, name, "test", result["test"], targets)
    elif isinstance(result, tuple | list) and len(result) in (2, 3):
        _check_map_style(name, "train", result[0])
        groups = [lone_records.items(result[0])]
        rest = dict(zip(_OPTIONAL, result[2:], strict=False))
        test = partial(_stacked, name, "test", result[1], targets)
    else:
        rest = _parts(name, result, targets)
        groups = [(rest.pop("x_train"), rest.pop("y_train"))]
        return groups, rest
    if tested:
        rest["x_test"], rest["y_test"] = test()
    return groups, rest


def _count(name: str, part: str, x: Any) -> int:
    try:
        return len(x)
    except TypeError:
        said = f"{part} is {_described(x)}, but a list or an array of examples is needed"
        raise DataInvalid(f"data {name}: {said}") from None


def _parts(name: str, result: Any, targets: Targets) -> dict[str, Any]:
    if isinstance(result, Mapping):
        if "clients" in result:
            return _of_clients(name, result, targets)
        return _from_mapping(name, result, targets)
    if isinstance(result, tuple | list) and len(result) == len(_REQUIRED):
        return dict(zip(_REQUIRED, result, strict=True))
    if isinstance(result, tuple | list) and len(result) in (2, 3):
        parts = dict(zip(_REQUIRED, _stacked(name, "train", result[0], targets), strict=False))
        parts["x_test"], parts["y_test"] = _stacked(name, "test", result[1], targets)
        return parts | dict(zip(_OPTIONAL, result[2:], strict=False))
    raise DataInvalid(f"data {name}: the function returned {_described(result)}, not {_ALLOWED}")


def _from_mapping(name: str, result: Mapping[str, Any], targets: Targets) -> dict[str, Any]:
    needed = [key for key in _REQUIRED if targets != "tokens" or key.startswith("x")]
    _check_keys(name, result, needed, (*_REQUIRED, *_OPTIONAL), _OPTIONAL)
    return {"y_train": None, "y_test": None, **result}


def _check_keys(
    name: str,
    result: Mapping[str, Any],
    needed: Sequence[str],
    allowed: Sequence[str],
    optional: Sequence[str],
) -> None:
    missing = [key for key in needed if key not in result]
    unknown = [str(key) for key in result if key not in allowed]
    if missing or unknown:
        problem = f"lacks {missing[0]}" if missing else f"holds {unknown[0]}"
        raise DataInvalid(
            f"data {name}: the mapping that the function returned {problem}; the keys are "
            f"{', '.join(needed)} and optionally {' and '.join(optional)}"
        )


def _of_clients(name: str, result: Mapping[str, Any], targets: Targets) -> dict[str, Any]:
    owners, x, y = list[Any](), [], []
    for client, part in _clients(name, result).items():
        own_x, own_y = _pair(name, f"client {client}", part, targets)
        x.append(as_array(name, f"x of client {client}", own_x))
        if own_y is not None:
            y.append(as_array(name, f"y of client {client}", own_y))
        if not x[-1].shape or not len(x[-1]):
            raise DataInvalid(f"data {name}: client {client} has no examples: leave it out")
        owners += [client] * len(x[-1])
    try:
        parts = {"x_train": stacked(x), "y_train": stacked(y) if y else None}
    except ValueError as error:
        raise DataInvalid(f"data {name}: clients' parts do not fit together: {error}") from None
    parts["x_test"], parts["y_test"] = _pair(name, "test", result["test"], targets)
    extra = {"classes": result["classes"]} if "classes" in result else {}
    return {**parts, "client_ids": owners, **extra}


def _clients(name: str, result: Mapping[str, Any]) -> Mapping[Any, Any]:
    _check_keys(name, result, _BY_CLIENT, (*_BY_CLIENT, "classes"), ("classes",))
    clients = result["clients"]
    if isinstance(clients, tuple | list):
        clients = dict(enumerate(clients))
    if not isinstance(clients, Mapping) or not clients:
        raise DataInvalid(
            f"data {name}: clients is {_described(clients)}, but a part for each client is needed"
        )
    return clients


def _pair(
    name: str, part: str, value: Any, targets: Targets, *, alone: bool = False
) -> tuple[Any, Any]:
    """Return x and y from `value`, which is a pair (x, y) or a map-style Dataset.

    If `targets` is "tokens", `value` may also be only x. Then y is None. If `alone` is True, an
    unusable item of a Dataset raises no error: None replaces its x and its y. `name` (the data set)
    and `part` (such as "test") are for error messages.
    """
    if targets == "tokens" and (_are_sequences(value) or hasattr(value, "__array__")):
        return value, None
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    if alone:
        _check_map_style(name, part, value)
        return lone_records.items(value)
    return _stacked(name, part, value, targets)


def _are_sequences(value: Any) -> bool:
    """Return True if `value` is a list of examples (sequences of tokens), not a pair [x, y].

    A list of two items is taken for two examples if at least one item is a sequence of tokens.
    The other example may be invalid.
    """
    return isinstance(value, list) and (len(value) != 2 or any(map(_is_sequence, value)))


def _is_sequence(item: Any) -> bool:
    try:
        with own_code.as_exceptions():
            return np.ndim(item) == 1
    except Exception:  # several sequences of different lengths
        return False


def _described(result: Any) -> str:
    if isinstance(result, tuple | list):
        return f"a {type(result).__name__} of {len(result)}"
    return f"an object of type {type(result).__name__}"


def _stacked(name: str, part: str, dataset: Any, targets: Targets) -> tuple[Any, Any]:
    _check_map_style(name, part, dataset)
    x, y = [], []
    for index in range(len(dataset)):
        with own_code.own_code_errors(
            f"data {name}", DataInvalid, f"item {index} of the {part} Dataset"
        ):
            item = dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataInvalid(
                f"data {name}: item {index} of the {part} Dataset is {_described(item)}, but a "
                "pair (x, y) is needed"
            )
        where = f"of item {index} of the {part} Dataset"
        x.append(as_array(name, f"x {where}", _as_one(item[0]), uneven=False))
        y.append(as_array(name, f"y {where}", _as_one(item[1]), uneven=False))
        shapes = x[-1].shape[1:], x[0].shape[1:]
        flat = targets == "class" and y[-1].shape != ()
        if x[-1].ndim != x[0].ndim or shapes[0] != shapes[1] or flat:
            raise DataInvalid(
                f"data {name}: item {index} of the {part} Dataset has an x of shape "
                f"{x[-1].shape} and a y of shape {y[-1].shape}, but {x[0].shape} as in item 0 "
                "and one number are needed"
            )
    return _together(name, part, x), _together(name, part, y)


def _check_map_style(name: str, part: str, dataset: Any) -> None:
    is_map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not is_map_style or isinstance(dataset, tuple | list | Mapping | np.ndarray):
        raise DataInvalid(
            f"data {name}: the function returned {_described(dataset)} for {part}, not a "
            f"map-style Dataset; allowed are {_ALLOWED}"
        )
    with own_code.own_code_errors(f"data {name}", DataInvalid, f"the length of the {part} Dataset"):
        len(dataset)


def _as_one(value: Any) -> Any:
    """Turn {input name: array} into a batch of one example. Returns any other `value` unchanged."""
    return {k: [v] for k, v in value.items()} if isinstance(value, Mapping) else value


def _together(name: str, part: str, items: list[Array]) -> Any:
    """Combine `items`, the x or the y of all items of a Dataset, into one array.

    Returns `items` unchanged if their shapes differ, and a mapping of input names to arrays if the
    items have several inputs. `name` (the data set) and `part` (such as "test") are for error
    messages.
    """
    if not any(item.dtype.names for item in items):
        return items if len({item.shape for item in items}) > 1 else np.array(items)
    inputs = items[0].dtype.names or ()
    for index, item in enumerate(items):
        own = item.dtype.names or ()
        if set(own) != set(inputs):
            found, needed = (", ".join(names) or "one array" for names in (own, inputs))
            raise DataInvalid(
                f"data {name}: item {index} of the {part} Dataset has {found}, but {needed} as in "
                "item 0 is needed"
            )
    return {one: _together(name, part, [item[one][0] for item in items]) for one in inputs}

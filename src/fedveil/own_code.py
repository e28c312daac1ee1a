"""A user's own code, which a job names as `package.module:function`."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fedveil.errors import FedveilError

T = TypeVar("T")
#: The form package.module:function.
FUNCTION = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


def is_function(name: str) -> bool:
    """Whether `name` has the form package.module:function."""
    return re.fullmatch(FUNCTION, name) is not None


def load(
    name: str, *, key: str, error: type[FedveilError], built_in: Iterable[str] = ()
) -> Callable[..., Any]:
    """What `name` names: a function, or a class.

    Raises `error`, its sentence beginning with `key`, such as `model = 'm:f'`. `built_in` are the
    names that are allowed there besides.
    """
    if not is_function(name):
        words = ", ".join(built_in)
        raise error(
            f"{key} is neither one of {words} nor package.module:function"
            if words
            else f"{key}: package.module:function is needed"
        )
    module_name, _, attribute = name.partition(":")
    with told(key, error, f"importing {module_name}"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as missing:
            if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
                raise
            hint = ""
            if module_name.endswith(".py"):
                hint = (
                    f": a file is named without .py, {module_name.removesuffix('.py')}:{attribute}"
                )
            raise error(
                f"{key}: there is no module {missing.name}, neither in the current folder nor "
                f"installed{hint}"
            ) from None
    found: object = getattr(module, attribute, None)
    if found is None:
        raise error(f"{key}: the module {module_name} has no {attribute}")
    if not callable(found):
        raise error(f"{key}: {attribute} is not a function")
    return found


def called(function: Callable[..., T], **offered: object) -> T:
    """What `function` returns, called with those of the arguments that it has."""
    wanted = inspect.signature(function).parameters
    return function(**{key: value for key, value in offered.items() if key in wanted})


@contextmanager
def told(key: str, error: type[FedveilError], what: str = "the function") -> Iterator[None]:
    """Turn whatever a user's code raises into one sentence; fedveil's errors are one already."""
    try:
        yield
    except FedveilError:
        raise
    except Exception as raised:
        raise error(f"{key}: {what} raised {described(raised)}") from raised


def described(error: Exception) -> str:
    """An error of a user's code on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

"""Public names of a package that are imported when they are first asked for.

`import fedveil.mechanisms` must not import torch, and a helper process needs few names of many.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from fedveil.errors import MissingExtra


def lazy(
    package: str, needs: tuple[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__` (PEP 562), for the names in its `__all__`.

    They live where the package's imports for type checkers say. `needs` is a package that all of
    them need, and the extra that installs it.
    """

    def find(name: str) -> Any:
        if name not in sys.modules[package].__all__:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if needs is not None:
            try:
                importlib.import_module(needs[0])
            except ImportError:
                raise MissingExtra(*needs, f"{package}.{name}") from None
        home = _homes(package)[name]
        if home == package:  # the name is a module of its own
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(home), name)

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return find, names


@cache
def _homes(package: str) -> dict[str, str]:
    """Name -> module, of the imports that stand under `if TYPE_CHECKING`: said once, for both."""
    tree = ast.parse(inspect.getsource(sys.modules[package]))
    imports = next(node.body for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module)
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

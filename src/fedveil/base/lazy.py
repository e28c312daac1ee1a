"""Imports the public names of a package at their first use.

So `import fedveil.mechanisms` does not import torch, and a process that needs only a few names
starts quickly.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from fedveil.errors import MissingExtra


def lazy(
    package: str, names: Mapping[str, Sequence[str]], needs: tuple[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__` (PEP 562), which import names at first use.

    `names` maps each module to the names that the package exports from it. An entry such as
    {"package.submodule": ["submodule"]} exports the submodule itself. `needs` is a pair: an
    external package that all names need, and fedveil's extra that installs it. If the external
    package is missing, the import of a name raises `MissingExtra`.
    """
    homes = {name: home for home, held in names.items() for name in held}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if needs is not None:
            try:
                importlib.import_module(needs[0])
            except ImportError:
                raise MissingExtra(*needs, f"{package}.{name}") from None
        module = importlib.import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    def listed() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return find, listed


@cache
def special() -> Any:
    """Return `scipy.special`. It is imported at the first call, which takes a third of a second."""
    from scipy import special

    return special

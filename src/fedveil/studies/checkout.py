"""Finds the package `experiments`, which a checkout contains but the wheel does not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal

from fedveil.errors import ExperimentsMissing

PACKAGE = "experiments"
#: The size of an experiment's runs.
Scale = Literal["small", "medium", "full"]
#: The rule of each scale, for two cores. Not every experiment has every scale.
SCALE_RULES: Mapping[Scale, str] = {
    "small": "takes minutes",
    "medium": "takes up to five hours",
    "full": "the source's own size",
}


def module(name: str = "") -> ModuleType:
    """Import the module `name` of the package of experiments, or the package itself.

    Raises `ExperimentsMissing` if neither fedveil's checkout nor the working directory has the
    package, or if another package of this name hides it.
    """
    roots = (Path(__file__).parents[3], Path.cwd())
    root = next((r for r in roots if (r / "src" / "fedveil").is_dir() and _init(r).is_file()), None)
    if root is None:
        raise ExperimentsMissing(
            "the experiments are not part of an installed fedveil: run this command in a checkout "
            "of fedveil's repository, which holds them in the folder experiments/"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))  # worker processes search there too
    package = import_module(PACKAGE)
    if package.__file__ is None or not _init(root).samefile(package.__file__):
        found = package.__file__ or ", ".join(package.__path__)  # a folder without __init__.py
        raise ExperimentsMissing(
            f"{found} hides fedveil's experiments in {root / PACKAGE}: rename it, or "
            f"run this command elsewhere"
        )
    return import_module(f"{PACKAGE}.{name}") if name else package


def _init(root: Path) -> Path:
    return root / PACKAGE / "__init__.py"

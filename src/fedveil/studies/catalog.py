"""The sources' experiments that can be repeated, by name.

They are not in the wheel. They are the package `experiments` of a checkout.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_args

from fedveil.errors import ExperimentsMissing, InvalidValue, nearest
from fedveil.pages.table import Table
from fedveil.studies.experiment import Experiment, Scale

PACKAGE = "experiments"


def module(name: str = "") -> ModuleType:
    """Import the module `name` of the package of experiments, or the package itself.

    The package is searched for in the checkout from which fedveil runs, then in the working
    directory. Raises `ExperimentsMissing` if neither has it.
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
        raise ExperimentsMissing(
            f"{package.__file__} hides fedveil's experiments in {root / PACKAGE}: rename it, or "
            f"run this command elsewhere"
        )
    return import_module(f"{PACKAGE}.{name}") if name else package


def _init(root: Path) -> Path:
    return root / PACKAGE / "__init__.py"


def names() -> Mapping[str, str]:
    """Return the class of every experiment, written `module:class`, by the experiment's name."""
    found: Mapping[str, str] = module().EXPERIMENTS
    return found


def find(name: str) -> Experiment:
    """Return the experiment called `name`. Raises `InvalidValue` if there is none."""
    known = names()
    if name not in known:
        near = nearest(name, known)
        raise InvalidValue(
            f"there is no experiment {name}{near}; `fedveil reproduce --list` says what there is"
        )
    file, _, kind = known[name].partition(":")
    experiment: Experiment = getattr(module(file), kind)()
    return experiment


def table() -> Table:
    columns = ("name", "what", *get_args(Scale))
    return Table(columns, [_row(name) for name in names()])


def _row(name: str) -> Sequence[str]:
    experiment = find(name)
    takes = (takes_about(experiment, scale) for scale in get_args(Scale))
    return (name, experiment.what, *takes)


def takes_about(experiment: Experiment, scale: Scale) -> str:
    """Format the experiment's duration on two cores, or `-` if it does not have this scale."""
    return about(experiment.estimate_s(scale)) if scale in experiment.scales else "-"


def about(seconds: float) -> str:
    """Format an estimated duration in the largest unit of which it has at least two."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1, round(seconds))} s"

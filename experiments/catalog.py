"""The experiments by name, with their durations."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from shlex import quote
from typing import get_args

from experiments import EXPERIMENTS
from experiments.experiment import Experiment
from fedveil.errors import InvalidValue, nearest
from fedveil.pages.table import Table
from fedveil.studies.checkout import Scale


def find(name: str) -> Experiment:
    """Return the experiment called `name`. Raises `InvalidValue` if there is none."""
    if name not in EXPERIMENTS:
        shown = f"{quote(name)}{nearest(name, EXPERIMENTS)}"
        raise InvalidValue(
            f"there is no experiment {shown}; `fedveil reproduce --list` says what there is"
        )
    file, _, kind = EXPERIMENTS[name].partition(":")
    experiment: Experiment = getattr(import_module(f"experiments.{file}"), kind)()
    return experiment


def table() -> Table:
    columns = ("name", "what", *get_args(Scale))
    return Table(columns, [_row(name) for name in EXPERIMENTS])


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

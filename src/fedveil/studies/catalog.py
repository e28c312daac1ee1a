"""The experiments of the sources that can be repeated, by name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import get_args

from fedveil.errors import InvalidValue, nearest
from fedveil.pages.table import Table
from fedveil.studies.experiment import Experiment, Scale

#: Each class by its module here, imported on use.
EXPERIMENTS = {
    "signds-table": "signds_table:SignDSTable",
    "signds-lenet": "signds_lenet:SignDSLeNet",
    "ldp-convergence": "ldp_convergence:LDPConvergence",
    "ldp-cells": "ldp_cells:LDPCells",
    "ldp-epsilon": "ldp_epsilon:LDPEpsilon",
    "ldp-clients": "ldp_clients:LDPClients",
    "ldp-noniid": "ldp_noniid:LDPNonIID",
    "ldp-adaptive": "ldp_adaptive:LDPAdaptive",
    "embedding-dp": "protected_features:ProtectedFeatures",
    "pangu-embedding-dp": "protected_language:ProtectedLanguage",
    "secagg-cost": "secagg_cost:SecaggCost",
    "accuracy-epsilon": "accuracy_epsilon:AccuracyEpsilon",
}


def find(name: str) -> Experiment:
    """Return the experiment of that name. Raises `InvalidValue` if there is none."""
    if name not in EXPERIMENTS:
        near = nearest(name, EXPERIMENTS)
        raise InvalidValue(
            f"there is no experiment {name}{near}; `fedveil reproduce --list` says what there is"
        )
    module, _, kind = EXPERIMENTS[name].partition(":")
    experiment: Experiment = getattr(import_module(f"fedveil.reproductions.{module}"), kind)()
    return experiment


def table() -> Table:
    """Return a table of the experiments and their durations."""
    columns = ("name", "what", *get_args(Scale))
    return Table(columns, [_row(name) for name in EXPERIMENTS])


def _row(name: str) -> Sequence[str]:
    experiment = find(name)
    takes = (takes_about(experiment, scale) for scale in get_args(Scale))
    return (name, experiment.what, *takes)


def takes_about(experiment: Experiment, scale: Scale) -> str:
    """Format its duration on two cores, or `-` if it does not have this scale."""
    return about(experiment.estimate_s(scale)) if scale in experiment.scales else "-"


def about(seconds: float) -> str:
    """Format an estimated duration in the largest unit of which there are at least two."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1, round(seconds))} s"

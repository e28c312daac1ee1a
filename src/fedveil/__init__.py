"""Federated learning in which the protection of what leaves a client is one switch.

import fedveil
run = fedveil.simulate(fedveil.Job.load("job.yaml"))
run.metrics, run.model, run.folder
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedveil._version import __version__

if TYPE_CHECKING:
    from fedveil import secagg
    from fedveil.errors import FedveilError
    from fedveil.job import Job
    from fedveil.runtime.simulation import Run, resume, simulate

__all__ = ["FedveilError", "Job", "Run", "__version__", "resume", "secagg", "simulate"]

_HOMES = {
    "FedveilError": "fedveil.errors",
    "Job": "fedveil.job",
    "Run": "fedveil.runtime.simulation",
    "resume": "fedveil.runtime.simulation",
    "simulate": "fedveil.runtime.simulation",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: mechanisms alone need no torch."""
    if name == "secagg":
        return importlib.import_module("fedveil.secagg")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedveil' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Federated learning in which one setting chooses how clients' updates are protected.

import fedveil
run = fedveil.simulate(fedveil.Job.load("job.yaml"))
run.metrics, run.model, run.folder
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.base.lazy import lazy

if TYPE_CHECKING:
    from fedveil import secagg, vertical
    from fedveil.entry.simulation import Run, resume, simulate
    from fedveil.errors import FedveilError
    from fedveil.federated.job import Job
    from fedveil.learning.learning_task import Task
    from fedveil.statistics.asking import ask

__version__ = "0.2.0"

__all__ = [
    "FedveilError",
    "Job",
    "Run",
    "Task",
    "__version__",
    "ask",
    "resume",
    "secagg",
    "simulate",
    "vertical",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "fedveil.entry.simulation": ["Run", "resume", "simulate"],
        "fedveil.errors": ["FedveilError"],
        "fedveil.federated.job": ["Job"],
        "fedveil.learning.learning_task": ["Task"],
        "fedveil.secagg": ["secagg"],
        "fedveil.statistics.asking": ["ask"],
        "fedveil.vertical": ["vertical"],
    },
)

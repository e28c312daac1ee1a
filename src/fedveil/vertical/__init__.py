"""Vertical training between organisations: split learning.

Parties hold different features of the same examples, one of them the labels. Each trains its part
of one network; only the tensors at the cuts and their gradients cross.

    from fedveil.vertical import VerticalJob, train
    run = train(VerticalJob.load("job.yaml"))
    run.metrics, run.model, run.figures
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil.vertical.channel import Channel, Receive, Send, drive, drive_together
    from fedveil.vertical.embedding_layer import EmbeddingDPLayer
    from fedveil.vertical.job import VerticalJob
    from fedveil.vertical.parties import Batch, Party
    from fedveil.vertical.split import EmbeddingPrivacy, Optimizer, Part, SplitModel
    from fedveil.vertical.tasks import Columns, Task
    from fedveil.vertical.training import VerticalRun, evaluate, predict, resume, train

__all__ = [
    "Batch",
    "Channel",
    "Columns",
    "EmbeddingDPLayer",
    "EmbeddingPrivacy",
    "Optimizer",
    "Part",
    "Party",
    "Receive",
    "Send",
    "SplitModel",
    "Task",
    "VerticalJob",
    "VerticalRun",
    "drive",
    "drive_together",
    "evaluate",
    "predict",
    "resume",
    "train",
]

_HOMES = {
    "Batch": "parties",
    "Channel": "channel",
    "Columns": "tasks",
    "EmbeddingDPLayer": "embedding_layer",
    "EmbeddingPrivacy": "split",
    "Optimizer": "split",
    "Part": "split",
    "Party": "parties",
    "Receive": "channel",
    "Send": "channel",
    "SplitModel": "split",
    "Task": "tasks",
    "VerticalJob": "job",
    "VerticalRun": "training",
    "drive": "channel",
    "drive_together": "channel",
    "evaluate": "training",
    "predict": "training",
    "resume": "training",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the job's settings need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedveil.vertical' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedveil.vertical.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

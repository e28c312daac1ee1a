"""Vertical training between organisations: split learning.

Parties hold different features of the same examples, one of them the labels. Each trains its part
of one network; only the tensors at the cuts and their gradients cross.

    from fedveil.vertical import VerticalJob, train
    run = train(VerticalJob.load("job.yaml"))
    run.metrics, run.model, run.figures
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil._lazy import lazy

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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Batch": "fedveil.vertical.parties",
        "Channel": "fedveil.vertical.channel",
        "Columns": "fedveil.vertical.tasks",
        "EmbeddingDPLayer": "fedveil.vertical.embedding_layer",
        "EmbeddingPrivacy": "fedveil.vertical.split",
        "Optimizer": "fedveil.vertical.split",
        "Part": "fedveil.vertical.split",
        "Party": "fedveil.vertical.parties",
        "Receive": "fedveil.vertical.channel",
        "Send": "fedveil.vertical.channel",
        "SplitModel": "fedveil.vertical.split",
        "Task": "fedveil.vertical.tasks",
        "VerticalJob": "fedveil.vertical.job",
        "VerticalRun": "fedveil.vertical.training",
        "drive": "fedveil.vertical.channel",
        "drive_together": "fedveil.vertical.channel",
        "evaluate": "fedveil.vertical.training",
        "predict": "fedveil.vertical.training",
        "resume": "fedveil.vertical.training",
        "train": "fedveil.vertical.training",
    },
)

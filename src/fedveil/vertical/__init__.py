"""Vertical training between organisations: split learning.

The parties have different features of the same examples. One party, the leader, has the labels.
Each party trains its part of one network. Where one party's part reads another's output, the
output is sent forward, and its gradient is returned. Other messages contain the loss, or blinded
ids with which the parties find their common examples. docs/vertical.md has a table of what each
message reveals to whom.

    from fedveil.vertical import VerticalJob, train
    run = train(VerticalJob.load("job.yaml"))
    run.metrics, run.model, run.figures
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.base.lazy import lazy

if TYPE_CHECKING:
    from fedveil.entry.vertical import resume, train
    from fedveil.link.channel import Channel, Receive, Send, drive, drive_together
    from fedveil.vertical.embedding_layer import EmbeddingDPLayer
    from fedveil.vertical.job import VerticalJob
    from fedveil.vertical.one_process import VerticalRun, evaluate, predict
    from fedveil.vertical.optimizer import Optimizer
    from fedveil.vertical.party import Party
    from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel
    from fedveil.vertical.step import Batch
    from fedveil.vertical.task import Columns, Task

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
        "fedveil.entry.vertical": ["resume", "train"],
        "fedveil.link.channel": ["Channel", "Receive", "Send", "drive", "drive_together"],
        "fedveil.vertical.embedding_layer": ["EmbeddingDPLayer"],
        "fedveil.vertical.party": ["Party"],
        "fedveil.vertical.optimizer": ["Optimizer"],
        "fedveil.vertical.split": ["EmbeddingPrivacy", "Part", "SplitModel"],
        "fedveil.vertical.step": ["Batch"],
        "fedveil.vertical.task": ["Columns", "Task"],
        "fedveil.vertical.one_process": ["VerticalRun", "evaluate", "predict"],
        "fedveil.vertical.job": ["VerticalJob"],
    },
)

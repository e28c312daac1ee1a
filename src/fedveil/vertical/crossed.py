"""Sentences on what crosses between the parties of a run: what, in which direction, and to whom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from fedveil.vertical.job import VerticalJob
from fedveil.vertical.rows import Rows
from fedveil.vertical.split import Crossing, SplitModel
from fedveil.vertical.task import Subset


def sentences(job: VerticalJob, split: SplitModel, rows: Mapping[Subset, Rows]) -> Iterator[str]:
    """Yield one sentence for each direction between two parties."""
    train, test = rows["train"].count, rows["test"].count
    each = f"of each of {train:,} training examples in every epoch"
    if job.evaluation.every_epochs:
        each += f" and of {test:,} held-out examples in every evaluation"
    for sender, receiver in dict.fromkeys((c.sender, c.receiver) for c in split.crossings):
        parts = [c for c in split.crossings if (c.sender, c.receiver) == (sender, receiver)]
        yield f"{sender} sends {receiver}, {each}: {_listed([_output(c) for c in parts])}."
        if returned := [c for c in parts if c.gradient]:
            noise = job.privacy.label_protection
            how = "unprotected" if noise is None else f"under {noise.name}"
            what = _listed([f"the gradient of {c.part}'s output" for c in returned])
            yield f"{receiver} returns to {sender}, of each training example: {what}, {how}."
    others = _listed(list(split.followers))
    if job.record.followers_see_loss:
        yield f"{split.leader} tells {others} the mean loss of every step."
    labels = "drawn under label_dp" if job.privacy.label_dp else "unprotected in the gradients"
    yield f"No party sends its columns, its weights or its labels: the labels are {labels}."


def _output(crossing: Crossing) -> str:
    count = math.prod(crossing.output)
    if crossing.privacy is not None:
        eps = crossing.privacy.eps
        how = "without noise" if eps is None else f"at eps {eps:g} of EmbeddingDP"
        return f"{count:,} bits of {crossing.part} {how}"
    return f"{count:,} numbers of {crossing.part}, unprotected"


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{'; '.join(items[:-1])} and {items[-1]}"

"""Sentences for a run's log on the data that the parties send: what, from whom, and to whom."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedveil.privacy.loss import exactly
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.own_data import gradients_of_columns, of_own_data
from fedveil.vertical.rows import Order
from fedveil.vertical.split import Crossing, SplitModel
from fedveil.vertical.task import AlignBy


def sentences(
    job: VerticalJob, split: SplitModel, order: Order, held_out: int, ids_by: AlignBy | None = None
) -> Iterator[str]:
    """Yield log sentences that say which data the parties send to each other.

    `order` has the examples of each training step. `held_out` is the number of held-out examples.
    `ids_by` is the method by which parties on different machines find their common ids. None means
    that all parties are in one process, which sends no ids. Yields nothing if the leader has all
    parts.
    """
    if not split.followers:
        return
    for follower in split.followers:
        if ids_by is not None and split.columns(follower):
            yield _of_ids(split.leader, follower, ids_by)
    each = f"of each of {len(order.trained):,} training examples in every epoch"
    if job.evaluation.every_epochs:
        each += f" and of {held_out:,} held-out examples in every evaluation"
    if order.aside:
        each += f", and once of {order.aside:,} training examples set aside"
    for sender, receiver in dict.fromkeys((c.sender, c.receiver) for c in split.crossings):
        parts = [c for c in split.crossings if (c.sender, c.receiver) == (sender, receiver)]
        yield f"{sender} sends {receiver}, {each}: {_listed([_output(c) for c in parts])}."
        if returned := [c for c in parts if c.gradient]:
            noise = job.privacy.label_protection
            how = "unprotected" if noise is None else f"under {noise.name}"
            what = _listed([f"the gradient of {c.part}'s output" for c in returned])
            yield f"{receiver} returns to {sender}, of each training example: {what}, {how}."
    others = _listed(list(split.followers))
    if job.tells_loss:
        yield f"{split.leader} tells {others} the mean loss of every step, which depends on labels."
    if of_columns := _of_columns(job, split):
        yield (
            f"The {' and the '.join(of_columns)} that {split.leader} sends also depend on its own "
            f"columns, which nothing protects."
        )
    labels = "Nothing protects the labels in the gradients."
    if job.privacy.label_dp is not None:
        labels = "The labels in training are drawn under label_dp."
    elif job.privacy.label_protection is not None:
        labels = "The noise in the gradients hinders the reading of labels."
    yield f"No party sends its weights or its labels. {labels}"


def _of_columns(job: VerticalJob, split: SplitModel) -> list[str]:
    """Return the kinds of numbers by which the leader reveals something about its own columns."""
    is_joined = split.last.name in of_own_data(split.parts)
    gradients = ["gradients"] if gradients_of_columns(split, split.leader) else []
    return gradients + (["losses"] if job.tells_loss and is_joined else [])


def _of_ids(leader: str, follower: str, by: str) -> str:
    learns = (
        f"{leader} learns which of its own ids {follower} has, and {follower} which of its own ids "
        f"all parties have."
    )
    if by == "digests":
        return (
            f"{follower} sends {leader} keyed digests of its ids, which {leader} can search for "
            f"any id that it guesses: {learns}"
        )
    return f"{leader} and {follower} send each other their ids, blinded: {learns}"


def _output(crossing: Crossing) -> str:
    count = math.prod(crossing.output)
    if crossing.privacy is not None:
        eps = crossing.privacy.eps
        how = "without noise" if eps is None else f"at eps {exactly(eps)} of EmbeddingDP"
        return f"{count:,} bits of {crossing.part} {how}"
    return f"{count:,} numbers of {crossing.part}, unprotected"


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{'; '.join(items[:-1])} and {items[-1]}"

"""The memory that a party's parts need, computed from their shapes before any is allocated."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from fedveil.base.quantity import quantity
from fedveil.errors import ModelInvalid
from fedveil.learning.device import free_bytes
from fedveil.record.byte_count import shown_bytes
from fedveil.vertical.batch_memory import batch_bytes
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import make_split
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.part_optimizers import trained
from fedveil.vertical.split import OwnOptimizer, Part, SplitModel
from fedveil.vertical.task import Task

#: The bytes of a parameter, and of each number that training stores for a parameter.
_BYTES = 4


@dataclass(frozen=True)
class PartMemory:
    """A part's number of parameters, and the bytes needed to train it.

    A parameter that several parts share is counted only in the first of them. `stepping` are the
    bytes that torch's optimiser on a CPU needs only during its step.
    """

    part: str
    owner: str
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    stepping: int


def sizable(job: VerticalJob, task: Task) -> list[str]:
    """Return the parties whose parts can be built on torch's meta device.

    On this device tensors have shapes but no values, so the memory of the parts can be computed
    before any is allocated.
    """
    if any(part.module is not None for part in job.parts.values()):
        return []
    known: Collection[str] = getattr(task, "by_shape", ())
    return [party for party in (task.leader, *task.followers) if party in known]


def sized(job: VerticalJob, task: Task, parties: Collection[str]) -> SplitModel:
    """Return the split model with the parts of `parties` on torch's meta device, without values."""
    with torch.device("meta"):
        return make_split(job, task, parties)


def memory_of(split: SplitModel) -> list[PartMemory]:
    """Return the memory that the training of each part of `split` needs.

    Parts without a module, which other parties hold, are left out.
    """
    having = [part for part in split.parts if part.module is not None]
    learning: dict[str, list[int]] = {}
    for owner in {part.owner for part in having}:
        for part, own in trained(split, owner):
            learning[part.name] = [parameter.numel() for parameter in own]
    seen: set[int] = set()
    return [_of(part, learning.get(part.name, []), seen) for part in having]


def needed(parts: Collection[PartMemory], batch: int = 0) -> int:
    """Return the peak memory in bytes for training `parts`, if a batch needs `batch` bytes."""
    held = sum(part.weights + part.gradients + part.optimizer for part in parts)
    return held + max([batch, *(part.stepping for part in parts)])


def check_memory(job: VerticalJob, task: Task, here: Collection[str] | None = None) -> None:
    """Raise ModelInvalid if the parts of the parties in `here` need more memory than is free.

    If `here` is None, all parties count. Checks nothing if the need or the free memory is unknown.
    """
    wanted = {task.leader, *task.followers} if here is None else set(here)
    free = free_bytes(job.device)
    if free is None or not wanted.issubset(sizable(job, task)):
        return
    split = sized(job, task, wanted)
    parts, batch = memory_of(split), batch_bytes(split, task, wanted, job.batch_size)
    if needed(parts, batch) > free:
        owners = " and ".join(dict.fromkeys(part.owner for part in parts))
        raise ModelInvalid(
            f"device = {job.device} has {shown_bytes(free)} of memory free, but training "
            f"the parts of {owners} with batch_size = {job.batch_size} needs "
            f"{memory_text(parts, batch)}"
        )


def memory_text(parts: Sequence[PartMemory], batch: int = 0) -> str:
    """Return a text that says how much memory `parts` need, if a batch needs `batch` bytes."""
    weights, gradients, optimizer = (
        shown_bytes(sum(getattr(part, name) for part in parts))
        for name in ("weights", "gradients", "optimizer")
    )
    stepping = max((part.stepping for part in parts), default=0)
    amounts = ((batch, "a batch"), (stepping, "the optimiser's step"))
    passing = [f"{shown_bytes(size)} for {what}" for size, what in amounts if size]
    larger = "the larger of " if len(passing) > 1 else ""
    return (
        f"{shown_bytes(needed(parts, batch))} for "
        f"{quantity(sum(part.parameters for part in parts), 'parameter')}: weights {weights}, "
        f"gradients {gradients}, optimiser {optimizer}"
        + (f", and {larger}{' and '.join(passing)}" if passing else "")
    )


def _of(part: Part, learning: Sequence[int], seen: set[int]) -> PartMemory:
    assert part.module is not None, "only those that are here are asked for"
    mine = [each for each in part.module.parameters() if id(each) not in seen]
    seen.update(map(id, mine))
    parameters = sum(each.numel() for each in mine)
    return PartMemory(
        part=part.name,
        owner=part.owner,
        parameters=parameters,
        weights=_BYTES * parameters,
        gradients=_BYTES * sum(learning),
        optimizer=_BYTES * sum(learning) * _beside(part.optimizer),
        stepping=_BYTES * _in_passing(part.optimizer, learning),
    )


def _beside(optimizer: Optimizer | OwnOptimizer) -> int:
    """Return the number of values per trained parameter that an optimiser stores between steps."""
    if not isinstance(optimizer, Optimizer):
        return 0
    return int(optimizer.momentum > 0) if optimizer.name == "sgd" else 2


def _in_passing(optimizer: Optimizer | OwnOptimizer, learning: Sequence[int]) -> int:
    """Return the number of values that the optimiser stores only during a step.

    `learning` has the number of entries of each trained parameter.
    """
    decays = isinstance(optimizer, Optimizer) and optimizer.name == "sgd" and optimizer.weight_decay
    return max(learning, default=0) if decays else 0

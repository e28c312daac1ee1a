"""What a party's parts need of memory, told from their shapes before anything is held.

Torch's meta device makes modules that have shapes and no numbers: parts of billions of parameters
in a second.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedveil.errors import ModelInvalid
from fedveil.record.byte_count import shown_bytes
from fedveil.vertical.job_split import make_split
from fedveil.vertical.part_optimizers import trained
from fedveil.vertical.split import Optimizer, OwnOptimizer, Part, SplitModel
from fedveil.vertical.task import Task
from fedveil.vertical.vertical_job import VerticalJob

#: Of a parameter, and of each number that stands beside it.
_BYTES = 4


@dataclass(frozen=True)
class PartMemory:
    """A part's parameters, and the bytes of what training holds; shared ones are the first's."""

    part: str
    owner: str
    parameters: int
    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def sized(job: VerticalJob, task: Task, here: Collection[str] | None = None) -> SplitModel | None:
    """The parts of those in `here` by shape; None where only making them tells.

    That is where modules are functions of the job's, or follow from data.
    """
    named = any(part.module is not None for part in job.parts.values())
    if named or not getattr(task, "by_shape", False):
        return None
    with torch.device("meta"):
        return make_split(job, task, here)


def memory_of(split: SplitModel) -> list[PartMemory]:
    """What each part that is here needs to be trained."""
    having = [part for part in split.parts if part.module is not None]
    learning: dict[str, int] = {}
    for owner in {part.owner for part in having}:
        for part, own in trained(split, owner):
            learning[part.name] = sum(parameter.numel() for parameter in own)
    seen: set[int] = set()
    return [_of(part, learning.get(part.name, 0), seen) for part in having]


def check_memory(job: VerticalJob, task: Task, here: Collection[str] | None = None) -> None:
    """Refuse what the device has not the memory for, before anything of it is made."""
    split, free = sized(job, task, here), free_bytes(job.device)
    if split is None or free is None:
        return
    parts = memory_of(split)
    if sum(part.total for part in parts) > free:
        owners = " and ".join(dict.fromkeys(part.owner for part in parts))
        raise ModelInvalid(
            f"device = {job.device} has {shown_bytes(free)} of memory free, and to train the parts "
            f"of {owners} takes {told(parts)}"
        )


def told(parts: Sequence[PartMemory]) -> str:
    """What some parts need together, in words."""
    sums = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("total", "weights", "gradients", "optimizer", "parameters")
    }
    total, weights, gradients, optimizer = (shown_bytes(size) for size in list(sums.values())[:4])
    return (
        f"{total}: weights {weights}, gradients {gradients}, optimiser {optimizer}, of "
        f"{sums['parameters']:,} parameters"
    )


def free_bytes(device: str) -> int | None:
    """How much memory a device has left; None where nobody says."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return 1024 * sum(int(found[name][0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, LookupError, ValueError):
        return None


def _of(part: Part, learning: int, seen: set[int]) -> PartMemory:
    assert part.module is not None, "only those that are here are asked for"
    mine = [each for each in part.module.parameters() if id(each) not in seen]
    seen.update(map(id, mine))
    parameters = sum(each.numel() for each in mine)
    return PartMemory(
        part=part.name,
        owner=part.owner,
        parameters=parameters,
        weights=_BYTES * parameters,
        gradients=_BYTES * learning,
        optimizer=_BYTES * learning * _beside(part.optimizer),
    )


def _beside(optimizer: Optimizer | OwnOptimizer) -> int:
    """How many numbers an optimiser holds for each that is learnt; a task's own does not say."""
    if not isinstance(optimizer, Optimizer):
        return 0
    return int(optimizer.momentum > 0) if optimizer.name == "sgd" else 2

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
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import make_split
from fedveil.vertical.part_optimizers import trained
from fedveil.vertical.split import Optimizer, OwnOptimizer, Part, SplitModel
from fedveil.vertical.task import Task

#: Of a parameter, and of each number that stands beside it.
_BYTES = 4


@dataclass(frozen=True)
class PartMemory:
    """A part's parameters, and the bytes of what training holds; shared ones are the first's.

    `stepping` is what torch's optimiser holds beside while it changes one parameter on a CPU.
    """

    part: str
    owner: str
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    stepping: int


def sizable(job: VerticalJob, task: Task) -> list[str]:
    """The parties whose parts have shapes before anything is made.

    None has where modules are functions of the job's, and of the task's own only some may have.
    """
    if any(part.module is not None for part in job.parts.values()):
        return []
    known: Collection[str] = getattr(task, "by_shape", ())
    return [party for party in (task.leader, *task.followers) if party in known]


def sized(job: VerticalJob, task: Task, parties: Collection[str]) -> SplitModel:
    """The parts of some of those by shape, without a number."""
    with torch.device("meta"):
        return make_split(job, task, parties)


def memory_of(split: SplitModel) -> list[PartMemory]:
    """What each part that is here needs to be trained."""
    having = [part for part in split.parts if part.module is not None]
    learning: dict[str, list[int]] = {}
    for owner in {part.owner for part in having}:
        for part, own in trained(split, owner):
            learning[part.name] = [parameter.numel() for parameter in own]
    seen: set[int] = set()
    return [_of(part, learning.get(part.name, []), seen) for part in having]


def needed(parts: Collection[PartMemory]) -> int:
    """The bytes that some parts need together: their optimisers step in turn."""
    held = sum(part.weights + part.gradients + part.optimizer for part in parts)
    return held + max((part.stepping for part in parts), default=0)


def check_memory(job: VerticalJob, task: Task, here: Collection[str] | None = None) -> None:
    """Refuse what the device has not the memory for, before anything of it is made."""
    wanted, free = set(here or (task.leader, *task.followers)), free_bytes(job.device)
    if free is None or not wanted.issubset(sizable(job, task)):
        return
    parts = memory_of(sized(job, task, wanted))
    if needed(parts) > free:
        owners = " and ".join(dict.fromkeys(part.owner for part in parts))
        raise ModelInvalid(
            f"device = {job.device} has {shown_bytes(free)} of memory free, and to train the parts "
            f"of {owners} takes {told(parts)}"
        )


def told(parts: Sequence[PartMemory]) -> str:
    """What some parts need together, in words."""
    weights, gradients, optimizer = (
        shown_bytes(sum(getattr(part, name) for part in parts))
        for name in ("weights", "gradients", "optimizer")
    )
    stepping = shown_bytes(max((part.stepping for part in parts), default=0))
    return (
        f"{shown_bytes(needed(parts))}: weights {weights}, gradients {gradients}, optimiser "
        f"{optimizer} and {stepping} while it steps, of "
        f"{sum(part.parameters for part in parts):,} parameters"
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
    """How many numbers an optimiser holds for each that is learnt; a task's own does not say."""
    if not isinstance(optimizer, Optimizer):
        return 0
    return int(optimizer.momentum > 0) if optimizer.name == "sgd" else 2


def _in_passing(optimizer: Optimizer | OwnOptimizer, learning: Sequence[int]) -> int:
    """How many numbers it holds beside at most while it changes one parameter after the other.

    SGD makes one tensor of a parameter's size for weight decay. Adam makes two, the last of which
    it keeps while it makes those of the next.
    """
    if not isinstance(optimizer, Optimizer):
        return 0
    if optimizer.name == "sgd":
        return max(learning, default=0) if optimizer.weight_decay else 0
    pairs = zip(learning, [0, *learning], strict=False)
    return max((2 * size + before for size, before in pairs), default=0)

"""What a split model is trained for: its parts, who holds which columns, the loss, what is counted.

A job names a built-in task or a function of its own, `package.module:function`, which is called
with a seed for first weights and returns an object with the attributes of `Task`. In one process
the seed is the job's; a party on a machine of its own has one that nobody else knows, so that data
and ids must not follow from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedveil.base.own_code import called, load, told
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import DataInvalid, InvalidValue
from fedveil.link.channel import Exchange
from fedveil.settings.settings import Settings
from fedveil.vertical.party import Party
from fedveil.vertical.split import SplitModel
from fedveil.vertical.task_settings import TASKS

Subset: TypeAlias = Literal["train", "test"]
SUBSETS: tuple[Subset, ...] = ("train", "test")
Unit: TypeAlias = Literal["examples", "tokens"]
#: A follower's side of something done with the trained model; its reports draw from the entropy.
Assist: TypeAlias = Callable[[Party, Entropy], Exchange[None]]


@dataclass(frozen=True, eq=False)
class Columns:
    """What one party holds of a subset: a row of every column for each id.

    Ids are whole numbers or texts, none twice; rows of different parties belong together where
    their ids are equal, in whatever order each party holds them. Labels are the leader's alone.
    """

    ids: npt.NDArray[Any]
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    labels: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.ids.dtype.kind not in "iuU":
            raise DataInvalid(
                f"ids has dtype {self.ids.dtype} and shape {self.ids.shape}, one row of whole "
                f"numbers or texts is needed"
            )
        values, counts = np.unique(self.ids, return_counts=True)
        if (counts > 1).any():
            raise DataInvalid(f"the id {values[counts.argmax()]} is there {counts.max()} times")
        named = dict(self.columns)
        if self.labels is not None:
            named["labels"] = self.labels
        for name, column in named.items():
            if len(column) != len(self.ids):
                raise DataInvalid(
                    f"{name} has {len(column)} rows and ids has {len(self.ids)}, as many are needed"
                )

    def __len__(self) -> int:
        return len(self.ids)


@runtime_checkable
class Task(Protocol):
    """A task, the same on every machine that takes part.

    `classes` is how many classes the labels have, numbered from 0; None where a label is no
    class, so that label_dp does not apply. `unit` is what throughput is counted in, and
    `units_per_example` how many of them an example has.

    A task may also have
    - `files(party) -> dict[str, bytes]`: small files of a party, such as a tokenizer, that a run
      keeps in its folder, for the task that is made again to read;
    - `figures(outputs, labels) -> dict[str, Any]`: what is measured of all held-out examples
      together, of arrays; a figure that is no float is kept in the record, and not drawn;
    - `predictions(outputs, labels) -> dict[str, list[str]]`: what the last part's outputs, an
      array, say of each example, as columns of a table; either argument may be left out;
    - `assists: Mapping[str, Assist]`: what followers take part in besides training, evaluating and
      predicting, by the purpose that the leader names;
    - `numbered`: whether its ids are numbers that every party gives the same examples by itself, so
      that they are no secret and digests align them;
    - an argument `here` of `split_model`: the parties whose modules are needed, where it need not
      or cannot make the others'; None: all;
    - `by_shape`: the parties whose parts `split_model` makes without their data's rows and without
      drawing a number itself, so that torch's meta device can size them before they are made.
    """

    leader: str
    followers: tuple[str, ...]
    classes: int | None
    unit: Unit
    units_per_example: int

    def split_model(self) -> SplitModel:
        """The parts, their initial weights drawn from the seed, of the same shapes everywhere."""

    def owned(self, party: str, subset: Subset) -> Columns:
        """What a party holds, and nothing of what the others hold; no ids where it has no data."""

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of a batch."""

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """Sums over a batch, such as loss_sum and correct, and `examples`; see `averages`."""


def build(name: str, settings: Settings | None, seed: int, folder: Path | None = None) -> Task:
    """The task that a job names.

    What makes it is called with those of the arguments `settings` (its block of the job, None for
    the defaults), `seed` and `folder` (of the run that goes on, where the task's own files are)
    that it has.
    """
    key = f"task.name = {name!r}"
    make: Callable[..., Task] = load(
        TASKS.get(name, name), key=key, error=InvalidValue, built_in=TASKS
    )
    if name in TASKS:
        return called(make, settings=settings, seed=seed, folder=folder)
    with told(key, InvalidValue):
        own = called(make, seed=seed, folder=folder)
    needed = (*Task.__annotations__, "split_model", "owned", "loss", "metrics")
    missing = [has for has in needed if not hasattr(own, has)]
    if missing:
        raise InvalidValue(f"{key} returned a {type(own).__name__} without {', '.join(missing)}")
    return own


def check_party(task: Task, party: str) -> None:
    parties = (task.leader, *task.followers)
    if party not in parties:
        raise InvalidValue(f"party = {party!r} is not one of {', '.join(parties)}")


def assists_of(task: Task) -> Mapping[str, Assist]:
    """What the followers of this task take part in that those of others do not."""
    own: Mapping[str, Assist] = getattr(task, "assists", {})
    return own


def files_of(task: Task, party: str) -> Mapping[str, bytes]:
    """What this task keeps of a party in a run's folder."""
    own: Mapping[str, bytes] = getattr(task, "files", lambda party: {})(party)
    return own


def predictions_of(task: Task) -> Callable[..., Mapping[str, Sequence[str]]] | None:
    """What makes this task's own columns of outputs; None where it has none."""
    own: Callable[..., Mapping[str, Sequence[str]]] | None = getattr(task, "predictions", None)
    return own


M = TypeVar("M", bound=nn.Module)


def initial(seed: int, part: str, make: Callable[[], M]) -> M:
    """The module that `make` makes, its initial weights a function of the seed and the part."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Seeded(seed).stream("part", part).integer(1 << 63))
        return make()


def averages(sums: Mapping[str, float]) -> dict[str, float]:
    """The figures that sums of `Task.metrics` stand for: x_sum as x, correct as accuracy.

    The divisor is `examples`, or `tokens` where that was counted.
    """
    count = sums["tokens"] if "tokens" in sums else sums["examples"]
    names = {name: name.removesuffix("_sum") for name in sums if name not in ("examples", "tokens")}
    return {
        "accuracy" if short == "correct" else short: sums[name] / count
        for name, short in names.items()
    }


class Measured:
    """A task's averages and figures over batches that are added one after the other."""

    def __init__(self, task: Task) -> None:
        self._task, self._sums = task, defaultdict[str, float](float)
        self._figures: Callable[..., dict[str, Any]] | None = getattr(task, "figures", None)
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, outputs: torch.Tensor, labels: torch.Tensor | None) -> None:
        """The outputs of a batch, where its labels are here."""
        if labels is not None:
            for name, value in self._task.metrics(outputs, labels).items():
                self._sums[name] += value
            if self._figures is not None:
                self._kept.append((outputs.float(), labels))

    def quality(self) -> dict[str, Any]:
        """Nothing where nothing was added."""
        found: dict[str, Any] = averages(self._sums) if self._sums else {}
        if self._kept and self._figures is not None:
            outputs, labels = (torch.cat(part).numpy() for part in zip(*self._kept, strict=True))
            found |= self._figures(outputs, labels)
        return found


def by_default(task: Task) -> Literal["intersection", "digests"]:
    """How a task's examples are found where the job leaves it: numbers are no secret."""
    return "digests" if getattr(task, "numbered", False) else "intersection"

"""The task of a split model: its parts, the parties' columns, the loss and the metrics.

A job names a built-in task, or a function `package.module:function`. The function is called with a
seed for initial weights and returns an object with the attributes of `Task`. In one process this
seed is the job's. On separate machines each party has its own secret seed, so a task's data and ids
must not depend on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedveil.base.array_types import are_distinct
from fedveil.base.own_code import called, load, own_code_errors
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import DataInvalid, InvalidValue
from fedveil.link.channel import Exchange
from fedveil.settings.allowed import shown
from fedveil.settings.settings import Settings
from fedveil.vertical.party import Party
from fedveil.vertical.split import SplitModel
from fedveil.vertical.task_settings import TASKS

Subset: TypeAlias = Literal["train", "test"]
SUBSETS: tuple[Subset, ...] = ("train", "test")
#: The largest number of classes that a sentence lists.
_SHOWN = 5
#: How parties find their common examples.
AlignBy: TypeAlias = Literal["intersection", "digests"]
Unit: TypeAlias = Literal["examples", "tokens"]
#: Runs a follower's side of an exchange with the trained model. The entropy is for EmbeddingDP.
Assist: TypeAlias = Callable[[Party, Entropy], Exchange[None]]


@dataclass(frozen=True, eq=False)
class Columns:
    """One party's data of a subset, such as "train": ids, and columns with a row for each id.

    Ids are distinct whole numbers or texts. Rows of different parties belong together if their ids
    are equal. Each party may have its own order. Only the leader has labels.

        >>> import numpy as np
        >>> import torch
        >>> from fedveil.vertical import Columns
        >>> len(Columns(np.array([7, 3, 12]), {"x": torch.randn(3, 5)}))
        3
    """

    ids: npt.NDArray[Any]
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    labels: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.ids.dtype.kind not in "iuU":
            raise DataInvalid(
                f"ids has dtype {self.ids.dtype} and shape {self.ids.shape}; one row of "
                f"whole numbers or texts is needed"
            )
        if not are_distinct(self.ids):
            values, counts = np.unique(self.ids, return_counts=True)
            raise DataInvalid(f"the id {values[counts.argmax()]} occurs {counts.max()} times")
        named = list(self.columns.items())
        if self.labels is not None:  # a column may have this name too
            named.append(("labels", self.labels))
        for name, column in named:
            if len(column) != len(self.ids):
                raise DataInvalid(f"{name} has {len(column)} rows, but ids has {len(self.ids)}")

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class NewRows:
    """A party's rows to score, without labels.

    `notes` are sentences for this party about columns that differ from the training data. `drift`
    has an entry for each column, with numbers on how much it differs from the training data.
    `normalised` is a function that normalises any ids in the same way as the ids of these rows.
    """

    columns: Columns
    notes: Sequence[str]
    drift: Sequence[Mapping[str, Any]]
    normalised: Callable[[Sequence[str]], Sequence[str]]


@runtime_checkable
class Task(Protocol):
    """A learning problem of several parties: the model's parts, the data, the loss, the metrics.

    `classes` is the number of classes, which are numbered from 0. It is None if labels are not
    classes, so that label_dp does not apply. `unit` is the unit of throughput, such as "tokens",
    and an example has `units_per_example` of them.

    The attributes below are optional. About ids and data:

    - `numbered`: True if an id is only an example's number, which every party knows by itself. Ids
      are then no secret, and parties compare digests of their ids to find common ones.
    - `id_hint(ids: Mapping[str, Ids]) -> str`: advice if the parties in `ids` have few common ids,
      or "".
    - `notes(party) -> Sequence[str]`: sentences on how a party's data was read, for its own log.
    - `files(party) -> dict[str, bytes]`: small files of a party, such as a tokenizer. They are
      saved in the run folder and read when the run is resumed.

    For building the model, and for computing its memory beforehand:

    - `split_model(here)`: an optional parameter for the parties whose modules are needed. The
      modules of others can be omitted. None means all.
    - `by_shape`: the parties for which `split_model` needs no rows and draws no random numbers
      itself. Only their memory is computed, with torch's meta device.
    - `inputs`: the shape and the torch type of an example's columns, and of its `labels`. Without
      `inputs`, the memory of a batch is not counted.

    For results, computed from arrays of the last part's `outputs` and the `labels`:

    - `figures(outputs, labels) -> dict[str, Any]`: metrics over all held-out examples together. A
      metric that is not a float is saved in the record, but not plotted.
    - `predictions(outputs, labels) -> dict[str, list[str]]`: the columns of a table of predictions.
      The function may lack either parameter.

    For uses of the trained model:

    - `assists: Mapping[str, Assist]`: maps each further purpose of a session, such as "generate",
      to the function that runs a follower's side of it.
    - `schema(party) -> dict[str, str]`: the kind of each column in a file of rows to score. If a
      task has `schema`, training ends with a model bundle (`bundle`).
    - `new_rows(party, path, folder) -> NewRows`: the rows to score in a party's file `path`.
      `folder` has the party's `files`.
    """

    leader: str
    followers: tuple[str, ...]
    classes: int | None
    unit: Unit
    units_per_example: int

    def split_model(self) -> SplitModel:
        """Return the model's parts.

        The seed with which the task was built determines the initial weights, but no shapes.
        """

    def owned(self, party: str, subset: Subset) -> Columns:
        """Return a party's own data of a subset, such as "train".

        Reads no other party's data. The result has no ids if the party has none.
        """

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch, from the last part's outputs and the labels."""

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """Return sums over a batch, by name. `averages` computes the metrics from them.

        The sum called `examples` is needed: the number of examples. Others are, for instance,
        `loss_sum` and `correct`.
        """


def build(name: str, settings: Settings | None, seed: int, folder: Path | None = None) -> Task:
    """Build the task called `name`.

    A built-in task gets `settings`, its block of the job (None for the defaults). A user's function
    gets `seed` and `folder` if it accepts them. `folder` is the folder of a resumed run, with the
    task's own files.
    """
    key = f"task.name = {name!r}"
    make: Callable[..., Task] = load(
        TASKS.get(name, name), key=key, error=InvalidValue, built_in=TASKS
    )
    if name in TASKS:
        return called(make, settings=settings, seed=seed, folder=folder)
    with own_code_errors(key, InvalidValue):
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
    own: Mapping[str, Assist] = getattr(task, "assists", {})
    return own


def files_of(task: Task, party: str) -> Mapping[str, bytes]:
    own: Mapping[str, bytes] = getattr(task, "files", lambda party: {})(party)
    return own


def notes_of(task: Task, party: str) -> Sequence[str]:
    own: Sequence[str] = getattr(task, "notes", lambda party: ())(party)
    return own


def lone_classes(
    task: Task, train: torch.Tensor | None, test: torch.Tensor | None
) -> Iterator[str]:
    """Yield sentences about classes that only the training or only the held-out examples have.

    `train` and `test` are the labels of the common examples, or None at a follower. Yields nothing
    if an example does not have exactly one class as its label.
    """
    if train is None or test is None or task.classes is None or train.dim() != 1:
        return
    names = getattr(task, "class_names", None) or range(task.classes)
    known, held_out = (
        set(np.unique(labels.numpy()).tolist()) & set(range(task.classes))
        for labels in (train, test)
    )
    for own, others, where, so in (
        (known, held_out, "training", "no metric measures how well the model predicts"),
        (held_out, known, "held-out", "the model does not learn to predict"),
    ):
        lone = [shown(names[int(label)]) for label in sorted(own - others)]
        listed = ", ".join(lone[:_SHOWN]) + (", ..." if len(lone) > _SHOWN else "")
        if lone:
            what, it = ("class", "it") if len(lone) == 1 else ("classes", "them")
            yield f"labels: only {where} examples have the {what} {listed}, so {so} {it}"


def id_hint_of(task: Task, ids: Mapping[str, npt.NDArray[Any]]) -> str:
    own: str = getattr(task, "id_hint", lambda ids: "")(ids)
    return own


def predictions_of(task: Task) -> Callable[..., Mapping[str, Sequence[str]]] | None:
    own: Callable[..., Mapping[str, Sequence[str]]] | None = getattr(task, "predictions", None)
    return own


M = TypeVar("M", bound=nn.Module)


def initial(seed: int, part: str, make: Callable[[], M]) -> M:
    """Make a part's module, with initial weights drawn from `seed` and the name `part`."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(Seeded(seed).stream("part", part).integer(1 << 63))
        return make()


def averages(sums: Mapping[str, float]) -> dict[str, float]:
    """Turn sums from `Task.metrics` into averages: `x_sum` into `x`, `correct` into `accuracy`.

    The divisor is the sum called `tokens`, if there is one, otherwise `examples`.
    """
    count = sums["tokens"] if "tokens" in sums else sums["examples"]
    names = {name: name.removesuffix("_sum") for name in sums if name not in ("examples", "tokens")}
    return {
        "accuracy" if short == "correct" else short: sums[name] / count
        for name, short in names.items()
    }


class Measured:
    """Accumulates a task's metrics batch by batch: averages, and metrics that need all examples."""

    def __init__(self, task: Task) -> None:
        self._task, self._sums = task, defaultdict[str, float](float)
        self._figures: Callable[..., dict[str, Any]] | None = getattr(task, "figures", None)
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, outputs: torch.Tensor, labels: torch.Tensor | None) -> None:
        """Add the outputs of a batch. Does nothing without labels."""
        if labels is not None:
            for name, value in self._task.metrics(outputs, labels).items():
                self._sums[name] += value
            if self._figures is not None:
                self._kept.append((outputs.float(), labels))

    def quality(self) -> dict[str, Any]:
        """Return the mean loss and the metrics of the batches so far, or {} if there were none."""
        found: dict[str, Any] = averages(self._sums) if self._sums else {}
        if self._kept and self._figures is not None:
            outputs, labels = (torch.cat(part).numpy() for part in zip(*self._kept, strict=True))
            found |= self._figures(outputs, labels)
        return found


def aligned_by(wanted: AlignBy | None, task: Task) -> AlignBy:
    """Return the method to find common ids: `wanted` or, if it is None, the task's default.

    The default is "digests" if the task has `numbered` ids, else "intersection".
    """
    return wanted or ("digests" if getattr(task, "numbered", False) else "intersection")

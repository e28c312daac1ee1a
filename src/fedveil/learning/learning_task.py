"""Defines tasks. A task converts examples to batches, and computes the loss and the metrics.

A user's own task is a subclass of `Task`, which must define only `loss`:

    class Robust(fedveil.Task):
        def loss(self, outputs, targets):
            return torch.nn.functional.huber_loss(outputs, targets)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np
import torch
from torch import nn

from fedveil.base import own_code
from fedveil.base.array_types import Array
from fedveil.base.example_arrays import IGNORED, Opened, Targets
from fedveil.errors import TaskInvalid, nearest
from fedveil.learning import task_metrics
from fedveil.learning.losses import OWN, mean_loss
from fedveil.learning.precision import computing
from fedveil.learning.task_metrics import Better, Metric
from fedveil.learning.trainer import TrainingPlan, change_gradients, make_optimizer

#: A tensor, a dict with a tensor for each named input, or a list of tensors in order.
Tensors: TypeAlias = "torch.Tensor | Mapping[str, torch.Tensor] | Sequence[torch.Tensor]"


class Task(ABC):
    """Defines what a model learns: its batches, loss, metrics and training steps.

    Subclass it to define your own task. Only `loss` has no default.
    """

    #: The kind of targets to validate: "class", "numbers", "bits", "tokens", or "own" for any.
    targets: ClassVar[Targets] = "own"
    #: The padding values for examples of different lengths, and for their targets.
    padding: ClassVar[int] = 0
    target_padding: ClassVar[int] = 0
    #: The metrics that are single numbers, with their better direction. The first is the main one.
    measures: Mapping[str, Better] = {}

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the mean loss of a batch, from the model's `outputs` and the `targets`.

        `targets` is the second result of `collate`.
        """

    def collate(self, x: Opened, y: Opened) -> tuple[Tensors, Tensors]:
        """Convert examples to a batch: the model's input and the targets.

        The model is called with an input tensor directly, with a dict as keyword arguments, and
        with a list as positional arguments. `x` and `y` are arrays, or lists of arrays if lengths
        differ, or a dict of these if there are several inputs.
        """
        return as_tensors(x, self.padding), as_tensors(y, self.target_padding)

    def forward(self, model: nn.Module, inputs: Tensors) -> Any:
        """Return the model's outputs for the `inputs` of a batch, the first result of `collate`."""
        if isinstance(inputs, torch.Tensor):
            return model(inputs)
        return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)

    def scored(self, outputs: Any, targets: Any) -> tuple[Array, ...]:
        """Return arrays from which a batch's metrics are computed, with one row per example.

        By default, these are the tensors of `outputs` in order, then those of `targets`. For a task
        that does not define `metrics`, the default is an empty tuple.
        """
        if type(self).metrics is Task.metrics:
            return ()
        return *_arrays(outputs), *_arrays(targets)

    # A type checker accepts any parameters in a subclass if these two have the type Any.
    def metrics(self, *scored: Any, **_: Any) -> dict[str, Any]:
        """Return the metrics by name.

        Each argument is one of the arrays that `scored` returned, with the rows of all batches.
        """
        return {}

    def optimizer(
        self, parameters: Sequence[torch.Tensor], plan: TrainingPlan
    ) -> torch.optim.Optimizer:
        """Return a new optimiser of `parameters`, for a client's training in one round.

        By default, its kind and its settings are those in `plan`.
        """
        return make_optimizer(parameters, plan)

    def train(
        self, model: nn.Module, batches: Iterator[tuple[Tensors, Tensors]], plan: TrainingPlan
    ) -> None:
        """Train `model` in place, for one client and one round, by the settings of `plan`.

        At the start, `model` has the server's weights. `batches` yields the batches of all epochs,
        pairs of inputs and targets as `collate` returns them.
        """
        parameters = [p for p in model.parameters() if p.requires_grad]
        start = [p.detach().clone() for p in parameters]
        optimizer = self.optimizer(parameters, plan)
        forward = computing(partial(self.forward, model), plan.precision, parameters[0].device)
        for inputs, targets in batches:
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(self.loss(forward(inputs), targets))
            change_gradients(parameters, start, plan)
            optimizer.step()


def _arrays(part: Any) -> Iterator[Array]:
    """Yield each tensor in `part` as an array. `part` is a tensor, or nests tensors."""
    if isinstance(part, torch.Tensor):
        yield part.detach().cpu().numpy()
        return
    if not isinstance(part, Mapping | tuple | list):
        raise TypeError(
            f"the metrics need arrays, but there is a {type(part).__name__}. Define the task's "
            "method scored(outputs, targets), which returns the arrays that metrics gets"
        )
    for one in part.values() if isinstance(part, Mapping) else part:
        yield from _arrays(one)


#: The methods of a task that decide how it trains, besides its loss.
_STEPS = ("collate", "forward", "optimizer", "train")


def own_steps(task: Task) -> list[str]:
    """Return the names of the training methods, other than `loss`, that a task overrides."""
    return [name for name in _STEPS if getattr(type(task), name) is not getattr(Task, name)]


def as_tensors(part: Opened, padding: int = 0) -> Tensors:
    """Convert the examples `part` to tensors. Shorter examples are filled up with `padding`."""
    if isinstance(part, dict):
        return {name: _tensor(column, padding) for name, column in part.items()}
    return _tensor(part, padding)


def _tensor(column: Array | list[Array], padding: int) -> torch.Tensor:
    if not isinstance(column, list):
        return torch.from_numpy(column if column.flags.writeable else column.copy())
    longest = max(map(len, column))
    whole = np.full((len(column), longest, *column[0].shape[1:]), padding, column[0].dtype)
    for row, item in zip(whole, column, strict=True):
        row[: len(item)] = item
    return torch.from_numpy(whole)


class _Bundled(Task):
    """Base of the built-in tasks.

    `loss_name` is a name from `losses.LOSSES`. `table` has the functions of the task's metrics by
    name. `usual` names the metrics that are computed by default, and `lists` the metrics that are
    not a single number.
    """

    loss_name: ClassVar[str]
    table: ClassVar[Mapping[str, Metric]]
    usual: ClassVar[Sequence[str]]
    lists: ClassVar[Sequence[str]] = ("f1_per_class", "confusion")

    def __init__(self, metrics: Sequence[str] | None = None) -> None:
        self.chosen = list(metrics or self.usual)
        strangers = [name for name in self.chosen if name not in self.table]
        if strangers:
            raise TaskInvalid(
                f"evaluation.metrics has {strangers[0]!r}, which is not one of "
                f"{', '.join(self.table)}"
            )
        numbers = [name for name in self.chosen if name not in self.lists]
        self.measures = {name: task_metrics.better(name) for name in numbers}
        self._loss = mean_loss(self.loss_name)

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return self._loss(outputs, targets)

    def scored(self, outputs: Any, targets: Any) -> tuple[Array, ...]:
        rows = outputs.double().reshape(targets.shape).cpu().numpy()
        return rows, targets.double().cpu().numpy()

    def metrics(self, *scored: Array) -> dict[str, Any]:
        return {name: self.table[name](*scored) for name in self.chosen}


class Classification(_Bundled):
    """Classification, with cross-entropy."""

    targets = "class"
    loss_name = "cross_entropy"
    table = task_metrics.CLASSES
    usual = ("accuracy", "auc")

    def scored(self, outputs: Any, targets: Any) -> tuple[Array, ...]:
        return torch.log_softmax(outputs.double(), dim=1).cpu().numpy(), targets.cpu().numpy()

    def metrics(self, *scored: Array) -> dict[str, Any]:
        scores, y = scored
        loss = -scores[np.arange(len(y)), y].mean()
        return {"loss": float(loss), **super().metrics(scores, y)}


class Regression(_Bundled):
    """Regression, with the mean squared error."""

    targets = "numbers"
    loss_name = "mean_square"
    table = task_metrics.NUMBERS
    usual = ("rmse", "mae", "r2")

    def metrics(self, *scored: Array) -> dict[str, Any]:
        outputs, y = scored
        return {"loss": float(np.square(outputs - y).mean()), **super().metrics(outputs, y)}


class MultiLabel(_Bundled):
    """Several yes-or-no labels per example, each with binary cross-entropy."""

    targets = "bits"
    loss_name = "binary_cross_entropy"
    table = task_metrics.BITS
    usual = ("f1", "accuracy", "auc")

    def metrics(self, *scored: Array) -> dict[str, Any]:
        scores, y = scored
        loss = np.logaddexp(0, scores) - scores * y
        return {"loss": float(loss.mean()), **super().metrics(scores, y)}


class NextToken(_Bundled):
    """Prediction of the next token.

    The model's outputs are logits of the shape [examples, tokens, vocabulary].
    """

    targets = "tokens"
    target_padding = IGNORED
    loss_name = "next_token"
    table: ClassVar[Mapping[str, Metric]] = {
        "perplexity": lambda told, _: _perplexity(told),
        "accuracy": lambda told, _: float(told[:, 2].sum() / told[:, 1].sum()),
    }
    usual = ("perplexity", "accuracy")

    def scored(self, outputs: Any, targets: Any) -> tuple[Array, ...]:
        """Return two arrays for metrics, both with one row per example.

        The columns of the first array are the sum of losses, the number of tokens with a target,
        and the number of right predictions. The second array is True for examples that have a
        target.
        """
        logs = torch.log_softmax(outputs.double(), dim=2).transpose(1, 2)
        losses = nn.functional.nll_loss(logs, targets, reduction="none", ignore_index=IGNORED)
        there = targets != IGNORED
        right = (outputs.argmax(2) == targets) & there
        told = torch.stack([losses.sum(1), there.sum(1).double(), right.sum(1).double()], dim=1)
        return told.cpu().numpy(), there.any(1).cpu().numpy()

    def metrics(self, *scored: Array) -> dict[str, Any]:
        """Return the metrics, over the examples with a target. They are NaN if there is none.

        The arguments are the two arrays of `NextToken.scored`, for all examples.
        """
        told, there = scored
        told = told[there]
        if not len(told):
            return dict.fromkeys(("loss", *self.chosen), math.nan)
        loss = float((told[:, 0] / told[:, 1]).mean())
        return {"loss": loss, **super().metrics(told, there)}


def _perplexity(told: Array) -> float:
    mean = told[:, 0].sum() / told[:, 1].sum()
    return float(np.exp(min(mean, math.log(np.finfo(np.float64).max))))


class SequenceClassification(Classification):
    """Classification of texts by a language model."""


class Instruction(NextToken):
    """Prediction of an answer's tokens. The tokens of the prompt have no loss."""


BUNDLED: dict[str, type[_Bundled]] = {
    "classification": Classification,
    "regression": Regression,
    "multilabel": MultiLabel,
    "next_token": NextToken,
    "sequence_classification": SequenceClassification,
    "instruction": Instruction,
}


def find(name: str, metrics: Sequence[str] | None = None) -> Task:
    """Return the task called `name`. A built-in task computes only the `metrics`, if given.

    Raises `TaskInvalid` if there is no such task or metric, or if a user's own task gets `metrics`.
    """
    if name in BUNDLED:
        return BUNDLED[name](metrics)
    key = f"task = {name!r}"
    made = own_code.load(name, key=key, error=TaskInvalid, built_in=BUNDLED)
    with own_code.own_code_errors(key, TaskInvalid):
        task = made()
    if not isinstance(task, Task):
        raise TaskInvalid(f"{key} gives a {type(task).__name__}, not a fedveil.Task")
    _check_attributes(key, task)
    if metrics is not None:
        raise TaskInvalid(
            f"evaluation.metrics is only for bundled tasks, but {key} has its own. Remove the key"
        )
    return task


def _check_attributes(key: str, task: Task) -> None:
    """Raise `TaskInvalid` if `targets` or `measures` of a user's own task has an unknown value."""
    if not isinstance(task.measures, Mapping):
        raise TaskInvalid(f'{key}: measures is no mapping. Write it as {{"mae": "lower"}}')
    checks: list[tuple[str, Any, tuple[str, ...]]] = [
        ("targets", task.targets, get_args(Targets)),
        *((f"measures[{name!r}]", to, get_args(Better)) for name, to in task.measures.items()),
    ]
    for attribute, value, values in checks:
        if value not in values:
            near = nearest(str(value), values)
            raise TaskInvalid(
                f"{key}: {attribute} = {value!r} is not one of {', '.join(values)}{near}"
            )


def plan_loss(task: Task) -> str:
    """Return the name of the task's loss in a training plan, or `OWN` for a user's own task."""
    return task.loss_name if type(task) in BUNDLED.values() else OWN  # type: ignore[attr-defined]

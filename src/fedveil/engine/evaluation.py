"""Tests a run's model on the test examples."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Array, Float32s
from fedveil.data.examples import Examples
from fedveil.engine.client_evaluation import ClientTest, HeldOut
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.run_records import is_free
from fedveil.errors import ModelInvalid, RunStopped, TaskInvalid
from fedveil.learning.evaluate import Scores, score
from fedveil.learning.learning_task import Task
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.weight_layout import Layout
from fedveil.record.metric_names import LOSS, MEASURES, USUAL


class ModelTest:
    """Tests a model on the examples `test`. Its method `quality` returns the metrics.

    If `held` is given, the model is also tested on the examples that each client holds out. The
    attribute `layout` describes the weights that are trained.
    """

    def __init__(
        self, model: nn.Module, task: Task, test: Examples, device: str, held: HeldOut | None = None
    ) -> None:
        self.part = TrainedPart.of(model)
        self._clients = None if held is None else ClientTest(self.part, task, held, device)
        self.layout = Layout(self.part.module)
        self._task = task
        self._test = test
        self._device = device
        #: The clients' states, set if the run has them and the test reads them.
        self.clients: ClientStates | None = None

    @cached_property
    def _seen(self) -> Array:
        return self.part.inputs(self._test.x, self._device)

    def quality(self, weights: Float32s) -> dict[str, Any]:
        self.layout.write(torch.from_numpy(weights))
        try:
            scores = score(self.part.module, self._task, self._seen, self._test.y)
            return metric_entries(scores) | (self._clients.quality() if self._clients else {})
        except (ModelInvalid, TaskInvalid):
            raise
        except Exception as error:  # the user's model may raise anything
            raise RunStopped(f"the model cannot be evaluated: {error!r}") from error


def metric_entries(scores: Scores) -> dict[str, Any]:
    """Return the metrics in `scores` as entries of a round's record, by name.

    If the task has its own metrics, the entry `MEASURES` is added. It maps the name of each of
    these metrics to "higher" or "lower": the direction in which the metric improves. By default,
    the first of them decides which model is best. Raises `TaskInvalid` for an invalid metric.
    """
    task = scores.task
    figures = {name: _plain(name, value) for name, value in scores.figures().items()}
    missing = [name for name in task.measures if name not in figures]
    if missing:
        raise TaskInvalid(f"the task's metrics do not return {missing[0]}, which its measures name")
    for name in (LOSS, *task.measures):
        if isinstance(figures[name], list):
            raise TaskInvalid(f"the task's metric {name} is a list, and must be one number")
    named = dict(task.measures)
    usual = list(named.items()) == list(USUAL.items())
    return figures if usual else {**figures, MEASURES: named}


def _plain(name: str, value: Any) -> Any:
    """Return a metric's value as float or list of floats. Raises `TaskInvalid` for other values."""
    if not is_free(name):
        raise TaskInvalid(
            f"the task's metrics return {name!r}, which cannot be a record's key. Use small "
            f"letters, digits and underscores, and no name of a round's own figures"
        )
    if isinstance(value, list | tuple | np.ndarray):
        array = np.asarray(value)
        if array.dtype.kind not in "iuf":
            raise TaskInvalid(f"the task's metric {name} is a list, but not of numbers")
        return array.tolist()
    if isinstance(value, torch.Tensor | np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TaskInvalid(f"the task's metric {name} is a {type(value).__name__}, not a number")
    return float(value)

"""How good a run's model is on the test examples, which its fixed layers see once."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.base.arrays import Array, Float32s
from fedveil.data.examples import Examples
from fedveil.engine.client_evaluation import CLIENTS, ClientTest, HeldOut
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.run_records import TRAINER
from fedveil.errors import ModelInvalid, RunStopped, TaskInvalid
from fedveil.learning.evaluate import Scores, score
from fedveil.learning.learning_task import Task
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.weight_layout import Layout
from fedveil.record.metric_names import MEASURES, USUAL
from fedveil.record.recorder import NEEDED

#: What a round's record has besides.
_TAKEN = {*NEEDED, *CLIENTS, MEASURES, TRAINER}
_NAME = r"[a-z][a-z0-9_]*"


class ModelTest:
    """A model and the examples that it is tested on; `layout` is that of its trained part."""

    def __init__(
        self, model: nn.Module, task: Task, test: Examples, device: str, held: HeldOut | None = None
    ) -> None:
        self.part = TrainedPart.of(model)
        self._clients = None if held is None else ClientTest(self.part, task, held, device)
        self.layout = Layout(self.part.module)
        self._task = task
        self._test = test
        self._device = device
        #: What clients keep, where the run knows it and a test reads it.
        self.clients: ClientStates | None = None

    @cached_property
    def _seen(self) -> Array:
        return self.part.seen(self._test.x, self._device)

    def quality(self, weights: Float32s) -> dict[str, Any]:
        """The figures of a record, with these weights."""
        self.layout.write(torch.from_numpy(weights))
        try:
            scores = score(self.part.module, self._task, self._seen, self._test.y)
            return told(scores) | (self._clients.quality() if self._clients else {})
        except (ModelInvalid, TaskInvalid):
            raise
        except Exception as error:  # the user's model may raise anything
            raise RunStopped(f"the model cannot be evaluated: {error!r}") from error


def told(scores: Scores) -> dict[str, Any]:
    """The figures, and which of them decide where these are not classification's usual ones."""
    task = scores.task
    figures = {name: _plain(name, value) for name, value in scores.figures().items()}
    missing = [name for name in task.measures if name not in figures]
    if missing:
        raise TaskInvalid(f"the task's metrics lack {missing[0]}, which its measures have")
    named = dict(task.measures)
    return figures if named == USUAL else {**figures, MEASURES: named}


def _plain(name: str, value: Any) -> Any:
    """A figure as a record holds it: a float, or a list of figures."""
    if not re.fullmatch(_NAME, name) or name in _TAKEN:
        raise TaskInvalid(
            f"the task's metrics have {name!r}, which a record cannot hold: a name of small "
            f"letters, digits and underscores is needed that no figure of a round has"
        )
    if isinstance(value, list | tuple | np.ndarray):
        return np.asarray(value).tolist()
    if isinstance(value, torch.Tensor | np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TaskInvalid(f"the task's metric {name} is a {type(value).__name__}, not a number")
    return float(value)

"""How good a run's model is on the test examples, which its fixed layers see once."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import nn

from fedveil._arrays import Float32s
from fedveil.data.examples import Examples
from fedveil.engine.executors.client_states import ClientStates
from fedveil.errors import ModelInvalid, RunStopped
from fedveil.learning.evaluate import evaluate
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.weight_layout import Layout


class ModelTest:
    """A model and the examples that it is tested on; `layout` is that of its trained part."""

    def __init__(self, model: nn.Module, test: Examples, device: str) -> None:
        self.part = TrainedPart.of(model)
        self.layout = Layout(self.part.module)
        self._test = test
        self._device = device
        #: What clients keep, where the run knows it and a test reads it.
        self.clients: ClientStates | None = None

    @cached_property
    def _seen(self) -> Float32s:
        return self.part.seen(self._test.x, self._device)

    def quality(self, weights: Float32s) -> dict[str, float]:
        """The figures of a record, with these weights."""
        self.layout.write(torch.from_numpy(weights))
        try:
            quality = evaluate(self.part.module, self._seen, self._test.y)
        except ModelInvalid:
            raise
        except Exception as error:  # the user's model may raise anything
            raise RunStopped(f"the model cannot be evaluated: {error!r}") from error
        return {"loss": quality.loss, "accuracy": quality.accuracy, "auc": quality.auc}

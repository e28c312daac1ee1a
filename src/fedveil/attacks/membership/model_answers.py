"""A model's outputs for examples, reduced to the values that membership attacks use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Float32s, Float64s, Int64s
from fedveil.errors import AttackImpossible

_BATCH = 1000
#: Number of largest probabilities that an attack model sees.
TOP = 3


@dataclass(frozen=True)
class Answers:
    """A model's log-probabilities for examples. `truth[i]` is ln p of example i's true class.

    `margin[i]` is ln(p / (1 - p)) of that class. `top[i]` has ln p of the three most probable
    classes of example i (of both if there are only two), in descending order.
    """

    truth: Float64s
    margin: Float64s
    top: Float64s

    @property
    def columns(self) -> Float64s:
        return np.column_stack([self.truth, self.margin, self.top])


@torch.no_grad()
def answers(model: nn.Module, x: Float32s, y: Int64s) -> Answers:
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    parts = [
        _of(model(torch.tensor(x[i : i + _BATCH], device=device)), y[i : i + _BATCH])
        for i in range(0, len(y), _BATCH)
    ]
    model.train(was_training)
    found = [np.concatenate(values) for values in zip(*parts, strict=True)]
    if not all(np.isfinite(values).all() for values in found):
        raise AttackImpossible("the model gives no finite answers: there is nothing to attack")
    return Answers(*found)


def _of(logits: torch.Tensor, labels: Int64s) -> tuple[Float64s, Float64s, Float64s]:
    log_p = torch.log_softmax(logits.double(), 1).cpu()
    place = torch.from_numpy(labels)[:, None]
    truth = log_p.gather(1, place)[:, 0]
    rest = torch.logsumexp(log_p.scatter(1, place, -torch.inf), 1)
    top = log_p.topk(min(TOP, log_p.shape[1]), 1).values
    return truth.numpy(), (truth - rest).numpy(), top.numpy()

"""A model's outputs for examples, reduced to the values that membership attacks use.

If the model predicts tokens, an example is a text. Its values are means over the tokens with a
target, so padding has no effect:

- ln p is minus the text's mean loss. So p is the geometric mean of its tokens' probabilities. The
  mean loss alone is the LOSS attack of Shi et al. 2024, "Detecting pretraining data from large
  language models".
- ln(p / (1 - p)) is computed from this p, for LiRA (Carlini et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Array, Float64s
from fedveil.base.example_arrays import IGNORED, is_plain
from fedveil.errors import AttackImpossible
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import Classification, NextToken

#: Number of largest probabilities that an attack model sees.
TOP = 3
#: The smallest loss of a text. A model's outputs are not precise enough for a smaller one.
_LEAST_LOSS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Answers:
    """A model's log-probabilities for examples. `truth[i]` is ln p of example i's true class.

    `margin[i]` is ln(p / (1 - p)) of that class. `top[i]` has ln p of the three most probable
    classes of example i (of both if there are only two), in descending order.

    If example i is a text, `truth[i]` is minus its mean loss over tokens, and `margin[i]` is
    ln(p / (1 - p)) for p = exp(`truth[i]`). `top[i]` has the means, over these tokens, of ln p of
    the three most probable next tokens.
    """

    truth: Float64s
    margin: Float64s
    top: Float64s

    @property
    def columns(self) -> Float64s:
        return np.column_stack([self.truth, self.margin, self.top])


class _OfClasses(Classification):
    def scored(self, outputs: Any, targets: Any) -> tuple[Array, ...]:
        return _of(outputs, targets)


class _OfTexts(NextToken):
    def scored(self, outputs: Any, targets: Any) -> tuple[Array, ...]:
        there = (targets != IGNORED).cpu()
        truth, _, top = _of(outputs[there], targets[there])
        means = np.zeros((len(there), 1 + top.shape[1]))
        np.add.at(means, there.nonzero()[:, 0].numpy(), np.column_stack([truth, top]))
        with np.errstate(invalid="ignore"):  # NaN if no token has a target
            means /= there.sum(1, keepdim=True).numpy()
        loss = np.maximum(-means[:, 0], _LEAST_LOSS)
        return means[:, 0], -loss - np.log(-np.expm1(-loss)), means[:, 1:]


def are_classes(y: Array) -> bool:
    """Return True if targets are a class per example, False if they are tokens."""
    return is_plain(y) and y.ndim == 1


def answers(model: nn.Module, x: Array, y: Array) -> Answers:
    """Return the model's log-probabilities for the examples `x` with the targets `y`.

    Targets are classes or tokens. Raises `AttackImpossible` if a log-probability is not finite.
    """
    task = _OfClasses() if are_classes(y) else _OfTexts()
    device = next(model.parameters()).device
    found = score(model, task, x, y, str(device)).kept
    if not all(np.isfinite(values).all() for values in found):
        raise AttackImpossible("the model gives no finite answers: there is nothing to attack")
    return Answers(*found)


def _of(logits: torch.Tensor, labels: torch.Tensor) -> tuple[Float64s, Float64s, Float64s]:
    """Return the values `truth`, `margin` and `top` of `Answers` for each row of `logits`.

    `labels[i]` is the true class, or the true token, of row i.
    """
    log_p = torch.log_softmax(logits.double(), 1).cpu()
    place = labels.cpu()[:, None]
    truth = log_p.gather(1, place)[:, 0]
    rest = torch.logsumexp(log_p.scatter(1, place, -torch.inf), 1)
    top = log_p.topk(min(TOP, log_p.shape[1]), 1).values
    return truth.numpy(), (truth - rest).numpy(), top.numpy()

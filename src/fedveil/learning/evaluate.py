"""How good a model is on held-out examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedveil._arrays import Float32s, Float64s, Int64s

_BATCH = 1000


@dataclass(frozen=True)
class Quality:
    """Mean cross-entropy, accuracy, and macro-averaged one-vs-rest area under the ROC curve."""

    loss: float
    accuracy: float
    auc: float


@torch.no_grad()
def evaluate(model: nn.Module, x: Float32s, y: Int64s, device: str = "cpu") -> Quality:
    """The quality of `model` on the examples."""
    was_training = model.training
    model.eval()
    parts = []
    for start in range(0, len(y), _BATCH):
        batch = torch.tensor(x[start : start + _BATCH], device=device)
        parts.append(torch.log_softmax(model(batch).double(), dim=1).cpu().numpy())
    model.train(was_training)
    scores = np.concatenate(parts)
    loss = -scores[np.arange(len(y)), y].mean()
    return Quality(float(loss), float((scores.argmax(1) == y).mean()), macro_auc(scores, y))


def macro_auc(scores: Float64s, y: Int64s) -> float:
    """The mean over classes of Pr[an example of the class outscores one of the rest].

    Ties count half. Classes that have no example, or all of them, say nothing and are left out;
    NaN where no class says anything or a score is not a number.
    """
    if np.isnan(scores).any():
        return float("nan")
    areas = []
    for label in np.unique(y):
        inside = y == label
        positives, negatives = int(inside.sum()), int((~inside).sum())
        if negatives:
            ranks = _ranks(scores[:, label])[inside].sum()
            areas.append((ranks - positives * (positives + 1) / 2) / (positives * negatives))
    return float(np.mean(areas)) if areas else float("nan")


def _ranks(values: Float64s) -> Float64s:
    """Each value's place in the order, from 1; equal values share the mean of their places."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]

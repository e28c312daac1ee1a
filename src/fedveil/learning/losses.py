"""The losses that a training plan can name: the mean over a batch, and each example's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
#: What `TrainingPlan.loss` says where only the task knows its loss.
OWN = "own"
#: And where classes count differently.
WEIGHTED = "weighted_cross_entropy"
#: A target of which nothing is to be learnt.
IGNORED = -100


def cross_entropy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Each example's; `y` holds classes."""
    return functional.cross_entropy(scores, y, reduction="none")


def mean_square(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Each example's squared error, the mean over its numbers."""
    return (outputs.reshape(y.shape) - y).square().flatten(1).mean(1)


def binary_cross_entropy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Each example's, the mean over its truth values; scores are logits."""
    each = functional.binary_cross_entropy_with_logits
    return each(scores.reshape(y.shape), y, reduction="none").flatten(1).mean(1)


def next_token(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Each example's mean over its tokens; scores are [examples, tokens, vocabulary]."""
    losses = functional.cross_entropy(
        scores.transpose(1, 2), y, reduction="none", ignore_index=IGNORED
    )
    return losses.sum(1) / (y != IGNORED).sum(1).clamp(min=1)


#: Each example's loss, of which a batch's is the mean.
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "mean_square": mean_square,
    "binary_cross_entropy": binary_cross_entropy,
    "next_token": next_token,
}


def each_loss(name: str, class_weights: Sequence[float] | None = None) -> Loss:
    """Each example's; `WEIGHTED` is its cross-entropy, times the weight of its class."""
    if name != WEIGHTED:
        return LOSSES[name]
    weights = torch.tensor(class_weights)
    return lambda scores, y: weights.to(scores.device)[y] * cross_entropy(scores, y)


def mean_loss(name: str, class_weights: Sequence[float] | None = None) -> Loss:
    """A batch's loss."""
    if name == "cross_entropy":
        return functional.cross_entropy  # one call less, in every step
    each = each_loss(name, class_weights)
    return lambda outputs, y: each(outputs, y).mean()

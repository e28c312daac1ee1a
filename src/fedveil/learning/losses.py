"""Loss functions by name, as a mean over a batch or as one value per example."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from fedveil.base.example_arrays import IGNORED

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
#: The value of `TrainingPlan.loss` if only the task can compute its loss.
OWN = "own"
#: The value of `TrainingPlan.loss` for cross-entropy with class weights.
WEIGHTED = "weighted_cross_entropy"


def cross_entropy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return each example's cross-entropy. `scores` is [examples, classes], and `y` the classes."""
    return functional.cross_entropy(scores, y, reduction="none")


def mean_square(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return each example's squared error, averaged over its outputs. `y` are the true values."""
    return (outputs.reshape(y.shape) - y).square().flatten(1).mean(1)


def binary_cross_entropy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return each example's binary cross-entropy, averaged over its labels. `scores` are logits."""
    each = functional.binary_cross_entropy_with_logits
    return each(scores.reshape(y.shape), y, reduction="none").flatten(1).mean(1)


def next_token(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return each example's cross-entropy, averaged over its tokens that have a target.

    `scores` is [examples, tokens, vocabulary]. `y` is [examples, tokens]: each token's target, or
    `IGNORED` for a token without one. An example without any target has the loss 0.
    """
    losses = functional.cross_entropy(
        scores.transpose(1, 2), y, reduction="none", ignore_index=IGNORED
    )
    return losses.sum(1) / (y != IGNORED).sum(1).clamp(min=1)


#: Name -> the loss of each example. The loss of a batch is their mean.
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "mean_square": mean_square,
    "binary_cross_entropy": binary_cross_entropy,
    "next_token": next_token,
}


def each_loss(name: str, class_weights: Sequence[float] | None = None) -> Loss:
    """Return the loss function `name`, which computes one value per example.

    The weighted cross-entropy multiplies each example's loss by the weight of its class, from
    `class_weights`. Other losses do not use them.
    """
    if name != WEIGHTED:
        return LOSSES[name]
    weights = torch.tensor(class_weights)
    return lambda scores, y: weights.to(scores.device)[y] * cross_entropy(scores, y)


def mean_loss(name: str, class_weights: Sequence[float] | None = None) -> Loss:
    """Return the loss function `name`, which computes the mean over a batch.

    The weighted cross-entropy weights this mean by `class_weights`, as torch does.
    """
    if name == "cross_entropy":
        return functional.cross_entropy  # saves one call in every step
    if name == WEIGHTED:
        weights = torch.tensor(class_weights)
        return lambda scores, y: _weighted_mean(scores, y, weights.to(scores)[y])
    return separate_loss(name, class_weights)


def _weighted_mean(scores: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mean of the batch's losses, weighted by `weights`, one weight per example.

    Torch's own weighted loss needs a weight for each score, but a model may have more scores than
    there are classes.
    """
    return (weights * cross_entropy(scores, y)).sum() / weights.sum()


def separate_loss(name: str, class_weights: Sequence[float] | None = None) -> Loss:
    """Return the loss function `name`: the sum of the examples' losses divided by their number.

    The weighted cross-entropy multiplies each example's loss by the weight of its class, from
    `class_weights`. `mean_loss` divides by the sum of the batch's weights, so an example changes
    the weight of other examples. This function does not, as guarantees for single examples require.
    """
    each = each_loss(name, class_weights)
    return lambda outputs, y: each(outputs, y).mean()

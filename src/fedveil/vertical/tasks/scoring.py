"""Losses and what is counted of a batch, for tasks to share."""

from __future__ import annotations

import torch
from torch.nn import functional


def classification_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of logits [examples, classes]."""
    return functional.cross_entropy(outputs, labels)


def classification_metrics(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """The batch's loss_sum, how many are correct, and how many examples there are."""
    return {
        "loss_sum": functional.cross_entropy(outputs, labels, reduction="sum").item(),
        "correct": float((outputs.argmax(dim=1) == labels).sum().item()),
        "examples": float(len(labels)),
    }


def regression_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean squared error of predictions [examples, 1]."""
    return functional.mse_loss(outputs[:, 0], labels)


def regression_metrics(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """The batch's loss_sum, its sum of absolute errors, and how many examples there are."""
    return {
        "loss_sum": functional.mse_loss(outputs[:, 0], labels, reduction="sum").item(),
        "absolute_error_sum": functional.l1_loss(outputs[:, 0], labels, reduction="sum").item(),
        "examples": float(len(labels)),
    }

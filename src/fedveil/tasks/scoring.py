"""Losses, what is counted of a batch, and what outputs say, for tasks to share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
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


class ByLabel:
    """A task's loss and metrics: of labels that are classes, or numbers where `classes` is None."""

    classes: int | None

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy, or the mean squared error of labels as they are scaled."""
        if self.classes is None:
            return regression_loss(outputs, labels)
        return classification_loss(outputs, labels)

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """loss_sum, examples, and correct or absolute_error_sum."""
        if self.classes is None:
            return regression_metrics(outputs, labels)
        return classification_metrics(outputs, labels)


def told_classes(
    outputs: npt.NDArray[np.float32], names: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """The likeliest class of each example, by name or else by number, and how likely it is."""
    chosen = outputs.argmax(axis=1)
    shares = torch.softmax(torch.from_numpy(outputs).double(), dim=1).numpy().max(axis=1)
    return {
        "prediction": [str(at) if names is None else names[at] for at in chosen],
        "probability": [f"{share:.6f}" for share in shares],
    }


def told_numbers(numbers: npt.NDArray[np.floating[Any]]) -> dict[str, list[str]]:
    """The number of each example, to the digits that a float32 has."""
    return {"prediction": [f"{number:.7g}" for number in numbers]}

"""The loss of a task by what its labels are, and what is counted of a batch."""

from __future__ import annotations

import torch
from torch.nn import functional


class ByLabel:
    """A task's loss and metrics: of labels that are classes, or numbers where `classes` is None.

    Outputs are logits [examples, classes], or predictions [examples, 1].
    """

    classes: int | None

    def loss(
        self, outputs: torch.Tensor, labels: torch.Tensor, reduction: str = "mean"
    ) -> torch.Tensor:
        """The mean cross-entropy, or the mean squared error of labels as they are scaled."""
        if self.classes is None:
            return functional.mse_loss(outputs[:, 0], labels, reduction=reduction)
        return functional.cross_entropy(outputs, labels, reduction=reduction)

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """The batch's loss_sum, how many are correct or absolute_error_sum, and `examples`."""
        loss = self.loss(outputs, labels, "sum").item()
        sums = {"loss_sum": loss, "examples": float(len(labels))}
        if self.classes is None:
            off = functional.l1_loss(outputs[:, 0], labels, reduction="sum")
            return {**sums, "absolute_error_sum": off.item()}
        return {**sums, "correct": float((outputs.argmax(dim=1) == labels).sum())}

"""Loss, metrics and predictions of tasks, for labels that are classes or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch.nn import functional

from fedveil.base.array_types import Array, Float64s
from fedveil.learning import task_metrics
from fedveil.learning.losses import WEIGHTED, separate_loss
from fedveil.vertical.calibration import calibrated, log_loss
from fedveil.vertical.predictions import told_classes, told_numbers

#: The metrics of classes, besides loss and accuracy.
_FIGURES = ("auc", "ks", "balanced_accuracy", "f1")


class ByLabel:
    """The loss and metrics for labels that are classes, or numbers if `classes` is None.

    Outputs are logits [examples, classes] for classes, and predictions [examples, 1] for numbers.
    """

    classes: int | None

    @property
    def class_weights(self) -> Sequence[float] | None:
        return None

    @property
    def class_names(self) -> Sequence[str] | None:
        """Return the names of the classes in the order of their numbers, or None without names."""
        return None

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy, or the mean squared error of scaled labels.

        Class weights multiply each example's loss. The sum is divided by the number of examples, so
        that no label changes the gradient of another example.
        """
        if self.classes is None:
            return functional.mse_loss(outputs[:, 0], labels)
        if self.class_weights is None:
            return functional.cross_entropy(outputs, labels)
        return separate_loss(WEIGHTED, self.class_weights)(outputs, labels)

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """Return a batch's `loss_sum` (unweighted), `examples` and, for classes, `correct`."""
        examples = float(len(labels))
        if self.classes is None:
            loss = functional.mse_loss(outputs[:, 0], labels, reduction="sum").item()
            return {"loss_sum": loss, "examples": examples}
        loss = functional.cross_entropy(outputs, labels, reduction="sum").item()
        correct = float((outputs.argmax(dim=1) == labels).sum())
        return {"loss_sum": loss, "examples": examples, "correct": correct}

    def figures(self, outputs: Array, labels: Array) -> dict[str, Any]:
        """Return metrics over all examples, by name.

        If labels are numbers, `labels` and `outputs` are first converted to the original unit.
        """
        if self.classes is None:
            told, true = self.in_own_unit(outputs), self.in_own_unit(labels.reshape(-1, 1))
            return {name: found(told, true) for name, found in task_metrics.NUMBERS.items()}
        scores = softmax(outputs.astype(np.float64), axis=1)
        found = {name: task_metrics.CLASSES[name](scores, labels) for name in _FIGURES}
        found["calibrated_loss"] = log_loss(calibrated(outputs, labels), labels)
        return {**found, "per_class": self._per_class(scores, labels)}

    def predictions(self, outputs: Array, labels: Array) -> Mapping[str, Sequence[str]]:
        """Return each example's predicted class and class probabilities, or predicted number.

        Probabilities of each half of the examples are calibrated on the `labels` of the other half.
        """
        if self.classes is None:
            return told_numbers(self.in_own_unit(outputs)[:, 0])
        return told_classes(outputs, labels, self.class_names)

    def in_own_unit(self, scaled: Array) -> Float64s:
        """Convert scaled labels or predictions to the original unit. By default, change nothing."""
        return scaled.astype(np.float64)

    def _per_class(self, scores: Float64s, labels: Array) -> dict[str, dict[str, float]]:
        table = np.array(task_metrics.confusion(scores, labels))
        with np.errstate(invalid="ignore"):
            precision, recall = np.diag(table) / table.sum(0), np.diag(table) / table.sum(1)
        f1 = task_metrics.f1_per_class(scores, labels)
        return {
            name: {
                "examples": int(table[at].sum()),
                "precision": float(precision[at]),
                "recall": float(recall[at]),
                "f1": f1[at],
            }
            for at, name in enumerate(self.class_names or map(str, range(len(table))))
        }

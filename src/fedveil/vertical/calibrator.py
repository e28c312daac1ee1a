"""A stored calibrator, which turns a trained model's outputs into probabilities and decisions.

It is fitted after training, to examples that are in no training step and not held out.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedveil.base.array_types import Array, Float64s
from fedveil.base.quantity import quantity
from fedveil.settings.stored import Stored
from fedveil.vertical.calibration import apply, fit

CALIBRATOR = "calibrator.json"


class Calibrator(Stored):
    """Fitted numbers that turn a model's logits into probabilities and predicted classes.

    The probabilities are softmax(`factor` * logits + `shifts`), with one shift for each class. With
    two classes, the second is predicted if its probability is at least `threshold`. With more
    classes there is no threshold: the most probable class is predicted. The numbers were fitted to
    `examples` examples, on which the threshold maximises the metric `criterion`.
    """

    what = "a calibrator"

    factor: float = Field(gt=0)
    shifts: tuple[float, ...] = Field(min_length=2)
    threshold: float | None = Field(None, ge=0, le=1)
    criterion: Literal["balanced_accuracy", "f1"]
    examples: int = Field(ge=1)

    @classmethod
    def fitted(
        cls, outputs: Array, labels: Array, criterion: Literal["balanced_accuracy", "f1"]
    ) -> Calibrator:
        """Return a calibrator fitted to the logits `outputs` and their `labels`.

        With two classes, its threshold maximises `criterion`.
        """
        factor, shifts = fit(outputs, labels)
        threshold = None
        if len(shifts) == 2:
            likely = apply(outputs, factor, shifts)[:, 1]
            threshold = _threshold(likely, labels.reshape(-1) == 1, criterion)
        return cls(
            factor=factor,
            shifts=tuple(shifts.tolist()),
            threshold=threshold,
            criterion=criterion,
            examples=len(labels),
        )

    def __str__(self) -> str:
        found = f"calibrator of {quantity(self.examples, 'example')}: factor {self.factor:.4f}"
        if self.threshold is None:
            return found
        return f"{found}, threshold {self.threshold:.4f} by {self.criterion}"

    def probabilities(self, outputs: Array) -> Float64s:
        return apply(outputs, self.factor, np.array(self.shifts))

    def decided(self, probabilities: Float64s) -> npt.NDArray[np.int64]:
        if self.threshold is None:
            return np.asarray(probabilities.argmax(axis=1), np.int64)
        return (probabilities[:, 1] >= self.threshold).astype(np.int64)


def _threshold(likely: Float64s, truth: npt.NDArray[np.bool_], criterion: str) -> float:
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        return 0.5
    order = np.argsort(-likely, kind="stable")
    sorted_likely, hit = likely[order], np.cumsum(truth[order])
    ends = np.append(np.flatnonzero(np.diff(sorted_likely)), len(order) - 1)
    right, wrong = hit[ends], ends + 1 - hit[ends]
    if criterion == "f1":
        scores = 2 * right / (right + wrong + positives)
    else:
        scores = right / positives + 1 - wrong / negatives
    best = ends[int(scores.argmax())]
    below = sorted_likely[best + 1] if best + 1 < len(order) else 0.0
    return float((sorted_likely[best] + below) / 2)

"""Quality of reconstructed examples, each compared with the original that it is matched to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedveil.attacks import pictures
from fedveil.base.array_types import Float64s, Int64s
from fedveil.privacy.finding import Measured
from fedveil.privacy.intervals import median, share


def paired(originals: Float64s, found: Float64s) -> Float64s:
    """Return `found` in the order of `originals`, matched by the least total squared error.

    Both arrays are [examples, *shape].
    """
    flat, other = originals.reshape(len(originals), -1), found.reshape(len(found), -1)
    costs = ((flat[:, None] - other[None]) ** 2).mean(-1)
    columns: Int64s = linear_sum_assignment(costs)[1]
    return np.asarray(found[columns])


def labels_in_common(labels: Int64s, found: Int64s) -> int:
    """Return the number of labels that two lists have in common, regardless of order.

    A repeated label counts as often as both lists have it: [0, 0, 1] and [0, 1, 1] have 2 in
    common.
    """
    classes = 1 + int(max(labels.max(), found.max()))
    held, guessed = (np.bincount(each, minlength=classes) for each in (labels, found))
    return int(np.minimum(held, guessed).sum())


@dataclass
class Score:
    """Collects reconstructions and their quality, and the quality of a fixed guess for comparison.

    The guess is the example `guess` with the label `common`. `right` counts the recovered labels.
    """

    guess: Float64s
    common: int
    originals: list[Float64s] = field(default_factory=list)
    found: list[Float64s] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    right: int = 0

    def add(self, originals: Float64s, labels: Int64s, found: Float64s, guessed: Int64s) -> None:
        """Add originals with their `labels`, and reconstructions `found` labelled `guessed`."""
        self.originals += list(originals)
        self.found += list(paired(originals, found))
        self.labels += labels.tolist()
        self.right += labels_in_common(labels, guessed)

    @property
    def are_images(self) -> bool:
        """Return True if examples are [channels, height, width] with one channel or three."""
        return self.guess.ndim == 3 and self.guess.shape[0] in (1, 3)

    def figures(self) -> list[Measured]:
        """Return the median MSE, PSNR and (for images) SSIM, and the share of labels recovered."""
        by = {"mse": pictures.mse, "psnr": pictures.psnr}
        if self.are_images and min(self.guess.shape[1:]) >= 4:
            by["ssim"] = pictures.ssim
        figures = []
        for name, likeness in by.items():
            guess = np.median([likeness(x, self.guess) for x in self.originals])
            pairs = zip(self.originals, self.found, strict=True)
            values = [likeness(x, z) for x, z in pairs]
            figures.append(median(name, values, guess=float(guess)))
        guessed = self.labels.count(self.common) / len(self.labels)
        cases = len(self.labels)
        return [*figures, share("label accuracy", self.right, cases, guess=guessed)]

    def grid(self, columns: int = 8) -> bytes:
        """Return a PNG with the first `columns` originals, each above its reconstruction."""
        shown: Sequence[list[Float64s]] = (self.originals[:columns], self.found[:columns])
        return pictures.grid(list(shown))

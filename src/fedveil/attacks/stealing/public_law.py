"""What an attacker knows of examples before it sees any report: the law of public ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil._arrays import Array, Bools, Float64s

#: Beside the variance of public examples, that of a feature which is the same in all of them.
_UNSEEN = 1e-3


@dataclass(frozen=True)
class PublicLaw:
    """Mean and covariance of public examples, the latter by its axes, and the range of values."""

    mean: Float64s
    axes: Float64s
    variances: Float64s
    low: float
    high: float

    @classmethod
    def of(cls, public: Array) -> PublicLaw:
        """The prior of `public` examples [examples, ...]."""
        flat = public.reshape(len(public), -1).astype(np.float64)
        mean = flat.mean(axis=0)
        centred = flat - mean
        variances, axes = np.linalg.eigh(centred.T @ centred / len(flat))
        floor = _UNSEEN * float(variances.mean())
        return cls(
            mean, axes, np.maximum(variances, 0) + floor, float(flat.min()), float(flat.max())
        )

    def restore(self, noisy: Float64s, noise: Float64s, known: Bools | None = None) -> Float64s:
        """The examples nearest in the mean to what is seen as `noisy` (Wiener's filter).

        Row i has noise of standard deviation `noise[i]` in every feature, none where that is 0;
        features that are not `known` are the mean's.
        """
        offset = noisy - self.mean
        if known is not None:
            offset = np.where(known, offset, 0.0)
        trust = self.variances / (self.variances + noise[:, None] ** 2)
        smooth = self.mean + (trust * (offset @ self.axes)) @ self.axes.T
        best = np.where((noise > 0)[:, None], smooth, self.mean + offset)
        return np.clip(best, self.low, self.high)

    def unit(self, examples: Array) -> Float64s:
        """Examples as rows with values in [0, 1], for figures that images are measured by."""
        flat = examples.reshape(len(examples), len(self.mean)).astype(np.float64)
        return (flat - self.low) / max(self.high - self.low, 1e-12)

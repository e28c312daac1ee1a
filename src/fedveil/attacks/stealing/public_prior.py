"""The attacker's prior knowledge: the distribution of public examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.base.array_types import Array, Bools, Float64s

#: Floor of a feature's variance, relative to the mean variance of the public examples.
_UNSEEN = 1e-3


@dataclass(frozen=True)
class PublicDistribution:
    """Distribution of public examples: mean, principal axes of the covariance, range of values."""

    mean: Float64s
    axes: Float64s
    variances: Float64s
    low: float
    high: float

    @classmethod
    def of(cls, public: Array) -> PublicDistribution:
        flat = public.reshape(len(public), -1).astype(np.float64)
        mean = flat.mean(axis=0)
        centred = flat - mean
        variances, axes = np.linalg.eigh(centred.T @ centred / len(flat))
        floor = _UNSEEN * float(variances.mean())
        return cls(
            mean, axes, np.maximum(variances, 0) + floor, float(flat.min()), float(flat.max())
        )

    def restore(self, noisy: Float64s, noise: Float64s, known: Bools | None = None) -> Float64s:
        """Return denoised examples, with the least mean squared error (Wiener's filter).

        Row i of `noisy` is an example, with noise of standard deviation `noise[i]` in every
        feature. `known` marks the features that the attacker observed, by default all.
        """
        offset = noisy - self.mean
        if known is not None:
            offset = np.where(known, offset, 0.0)
        trust = self.variances / (self.variances + noise[:, None] ** 2)
        smooth = self.mean + (trust * (offset @ self.axes)) @ self.axes.T
        best = np.where((noise > 0)[:, None], smooth, self.mean + offset)
        return np.clip(best, self.low, self.high)

    def unit(self, examples: Array) -> Float64s:
        """Return examples as rows, scaled so that the range of public values becomes [0, 1]."""
        flat = examples.reshape(len(examples), len(self.mean)).astype(np.float64)
        return (flat - self.low) / max(self.high - self.low, 1e-12)

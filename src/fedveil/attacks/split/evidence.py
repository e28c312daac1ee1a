"""What an attacker holds of a part's outputs, and how badly any other outputs would fit it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedveil.vertical.split import EmbeddingPrivacy

#: How exactly numbers are taken, and how sharply their sign is, as shares of their spread.
_EXACTNESS, _SHARPNESS = 0.03, 0.1


@dataclass(frozen=True)
class Evidence:
    """Reports of the same examples' outputs: their mean [examples, *output], and how many.

    `lie` is with which probability a bit was turned round; None where the outputs crossed as they
    are. Where every report is the same, they count as one.
    """

    mean: torch.Tensor
    reports: int = 1
    lie: float | None = None

    @classmethod
    def of(cls, reports: torch.Tensor, privacy: EmbeddingPrivacy | None) -> Evidence:
        """From reports [reports, examples, *output] that were drawn under EmbeddingDP, or plain."""
        mean, count = reports.mean(dim=0), len(reports)
        if privacy is None:
            return cls(mean)
        if privacy.eps is None:
            return cls(mean, lie=0.0)
        lie = 1 / (1 + math.exp(min(privacy.eps / 2, 700.0)))
        return cls(mean, 1 if privacy.reuse else count, lie)

    @property
    def spread(self) -> float:
        """The standard deviation of the numbers that crossed."""
        return max(float(self.mean.std(correction=0)), 1e-12)

    def misfit(self, outputs: torch.Tensor) -> torch.Tensor:
        """-ln Pr[the reports | outputs] of each example, up to a constant: [examples].

        Of numbers, with a small Gaussian error. Of bits, with the step at 0 made a steep slope, so
        that there is a direction to go in; under a lie of 1/2 it is the same for all outputs.
        """
        if self.lie is None:
            error = (outputs - self.mean) / (_EXACTNESS * self.spread)
            return error.square().flatten(1).sum(dim=1) / 2
        slope = _SHARPNESS * outputs.detach().std(correction=0).clamp(min=1e-12)
        one = self.lie + (1 - 2 * self.lie) * torch.sigmoid(outputs / slope)
        one = one.clamp(1e-6, 1 - 1e-6)
        told = self.mean * one.log() + (1 - self.mean) * (1 - one).log()
        return -self.reports * told.flatten(1).sum(dim=1)

"""What an attacker holds of a part's outputs, and how badly any other outputs would fit it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedveil.vertical.split import EmbeddingPrivacy

#: The error of numbers, as a share of their spread.
_ERROR = 0.03
#: No bit is taken as surer than e^30 to 1.
_MOST = 30.0


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

    def misfit(self, outputs: torch.Tensor, slope: float) -> torch.Tensor:
        """-ln Pr[the reports | outputs] of each example, up to a constant: [examples].

        Of numbers, with a small Gaussian error. Of bits, with the step at 0 made a slope of that
        width, so that there is a direction to go in: each bit is drawn once along the slope, and
        told in all reports, with lies. Under a lie of 1/2 it is the same for all outputs.
        """
        if self.lie is None:
            error = (outputs - self.mean) / (_ERROR * self.spread)
            return error.square().flatten(1).sum(dim=1) / 2
        certainty = _MOST if self.lie == 0 else min(math.log(1 / self.lie - 1), _MOST)
        told = self.reports * certainty * (2 * self.mean - 1)  # ln of 1's likelihood over 0's
        sure = told.abs().clamp(max=_MOST)
        agrees = torch.sigmoid(outputs * told.sign() / slope)
        return (sure - torch.log1p(agrees * sure.expm1())).flatten(1).sum(dim=1)

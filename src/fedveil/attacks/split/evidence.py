"""The reports of a part's output that an attacker has, and how well candidate outputs fit them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedveil.vertical.split import EmbeddingPrivacy

#: Assumed error of unprotected outputs, relative to their spread.
_ERROR = 0.03
#: Limit for the log-odds of a bit.
_MOST = 30.0


@dataclass(frozen=True)
class Evidence:
    """The reports that an attacker has seen of one part's outputs, for some examples.

    The part belongs to a split model. `mean`, [examples, *output], has the mean of each example's
    reports. `reports` is the number of reports of an example that EmbeddingDP perturbed
    independently, or 1 if it repeated one report or perturbed none. `lie` is the probability with
    which EmbeddingDP flipped a bit, or None if the reports are unprotected numbers.
    """

    mean: torch.Tensor
    reports: int = 1
    lie: float | None = None

    @classmethod
    def of(cls, reports: torch.Tensor, privacy: EmbeddingPrivacy | None) -> Evidence:
        """Summarise `reports`, [reports, examples, *output], which were sent under `privacy`."""
        mean, count = reports.mean(dim=0), len(reports)
        if privacy is None:
            return cls(mean)
        if privacy.eps is None:
            return cls(mean, lie=0.0)
        lie = 1 / (1 + math.exp(min(privacy.eps / 2, 700.0)))
        return cls(mean, 1 if privacy.reuse else count, lie)

    @property
    def spread(self) -> float:
        """Return the standard deviation of the entries of `mean`, or 1e-12 if it is smaller."""
        return max(float(self.mean.std(correction=0)), 1e-12)

    def misfit(self, outputs: torch.Tensor, slope: float) -> torch.Tensor:
        """Return how badly candidate outputs fit the reports of each example: [examples].

        The misfit is -ln Pr[the reports | outputs], up to a constant, under a model of the reports:

        - Outputs sent without protection have a small Gaussian error.
        - EmbeddingDP turns an output into a bit, which is 1 if the output is positive. The model
          smooths this step: the bit is 1 with a probability that rises from 0 to 1 along a slope of
          width `slope`. The bit is drawn once, and each report flips it independently with
          probability `self.lie`.
        """
        if self.lie is None:
            error = (outputs - self.mean) / (_ERROR * self.spread)
            return error.square().flatten(1).sum(dim=1) / 2
        certainty = _MOST if self.lie == 0 else min(math.log(1 / self.lie - 1), _MOST)
        told = self.reports * certainty * (2 * self.mean - 1)  # ln of 1's likelihood over 0's
        sure = told.abs().clamp(max=_MOST)
        agrees = torch.sigmoid(outputs * told.sign() / slope)
        return (sure - torch.log1p(agrees * sure.expm1())).flatten(1).sum(dim=1)

"""What becomes of a gradient before the leader sends it back: `privacy.label_protection`."""

from __future__ import annotations

import torch

from fedveil.entropy import Entropy
from fedveil.mechanisms.label_gradients import GradientDefence, Marvell, MaxNorm
from fedveil.vertical.split import Crossing
from fedveil.vertical.step import Occasion
from fedveil.vertical.vertical_blocks import LabelProtectionSettings


class ReturnedGradients:
    """Each micro-batch's gradient of each crossing, perturbed by itself, from a stream of its own.

    The labels are those that are trained on. What a crossing tells adds up with what others tell
    the same follower: each has noise of its own.
    """

    def __init__(self, settings: LabelProtectionSettings | None, entropy: Entropy) -> None:
        self._entropy = entropy
        self._defence: GradientDefence | None = None
        if settings is not None:
            marvell = settings.name == "marvell"
            self._defence = Marvell(settings.power) if marvell else MaxNorm()

    def __call__(
        self, crossing: Crossing, gradient: torch.Tensor, labels: torch.Tensor, occasion: Occasion
    ) -> torch.Tensor:
        if self._defence is None:
            return gradient
        rows = gradient.detach().float().cpu().numpy()
        rare = (labels.cpu() == 1).numpy()
        entropy = self._entropy.stream("gradient", crossing.part, *occasion.path)
        noised = torch.from_numpy(self._defence(rows, rare, entropy))
        return noised.to(gradient.device, gradient.dtype)

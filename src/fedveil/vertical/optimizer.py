"""The settings of a part's optimiser, and its learning rate by training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fedveil.base.validate import choice, integer, non_negative, positive, within


@dataclass(frozen=True)
class Optimizer:
    """The settings of one of torch's optimisers for a part.

    The learning rate rises linearly to `lr` in the first `warmup_steps` steps. It then falls
    linearly, to 0 after `decay_steps` further steps. If `decay_steps` is None, it stays constant.
    In each step, the gradient of all parameters of the part together is clipped to the L2 norm
    `gradient_norm`. None means no clipping.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    warmup_steps: int = 0
    decay_steps: int | None = None
    gradient_norm: float | None = None

    def __post_init__(self) -> None:
        choice("optimizer.name", self.name, ("sgd", "adam", "adamw"))
        positive("optimizer.lr", self.lr)
        within("optimizer.momentum", self.momentum, 0, 1, open_high=True)
        non_negative("optimizer.weight_decay", self.weight_decay)
        integer("optimizer.warmup_steps", self.warmup_steps, 0)
        if self.decay_steps is not None:
            integer("optimizer.decay_steps", self.decay_steps, 1)
        if self.gradient_norm is not None:
            positive("optimizer.gradient_norm", self.gradient_norm)

    def lr_of(self, step: int) -> float:
        """Return the learning rate of training step `step`, counted from 1."""
        after = max(0, step - self.warmup_steps - 1)
        left = 1.0 if self.decay_steps is None else max(0.0, 1 - after / self.decay_steps)
        return self.lr * min(1.0, step / max(self.warmup_steps, 1)) * left

    def over(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        lr, decay = self.lr, self.weight_decay
        if self.name == "sgd":
            return torch.optim.SGD(parameters, lr, momentum=self.momentum, weight_decay=decay)
        rule = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return rule(parameters, lr, weight_decay=decay, fused=True)

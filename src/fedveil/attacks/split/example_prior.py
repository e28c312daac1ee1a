"""What an attacker takes examples to be like before it sees anything of them.

A prior maps free numbers to examples, and says what the numbers cost: -ln of a density.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from fedveil.attacks.smoothness import total_variation

#: Of a pixel's difference from its neighbour, as a share of the range: a Laplace density's width.
_STEP = 0.1


class Prior(Protocol):
    """What examples are like; `rate` is how far a search goes in its numbers at first."""

    @property
    def rate(self) -> float: ...

    def start(self, examples: int) -> torch.Tensor:
        """The numbers of so many likely examples."""

    def examples(self, numbers: torch.Tensor) -> torch.Tensor:
        """The examples that the numbers stand for."""

    def cost(self, numbers: torch.Tensor) -> torch.Tensor:
        """-ln of the density, up to a constant: [examples]."""


@dataclass(frozen=True)
class Gaussian:
    """Normal, with a mean and a covariance factor · factorᵀ over the flattened example."""

    mean: torch.Tensor
    factor: torch.Tensor
    rate: float = 0.1

    @classmethod
    def of(cls, public: torch.Tensor, floor: float = 1e-3) -> Gaussian:
        """As public examples [examples, *shape] are spread; no direction less than `floor`²."""
        flat = public.flatten(1).double()
        mean = flat.mean(dim=0)
        centred = flat - mean
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(flat))
        factor = vectors * (values.clamp(min=0) + floor).sqrt()
        return cls(mean.to(public.dtype).reshape(public.shape[1:]), factor.to(public.dtype))

    @classmethod
    def standard(cls, shape: tuple[int, ...]) -> Gaussian:
        """Every feature alone, mean 0 and variance 1."""
        mean = torch.zeros(shape)
        return cls(mean, torch.eye(mean.numel()))

    def start(self, examples: int) -> torch.Tensor:
        return self.factor.new_zeros(examples, self.factor.shape[1])

    def examples(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.mean + (numbers @ self.factor.T).reshape(-1, *self.mean.shape)

    def cost(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.square().sum(dim=1) / 2


@dataclass(frozen=True)
class Smooth:
    """Images with values from `low` to `high` whose neighbouring pixels are mostly alike."""

    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    rate: float = 0.3

    def start(self, examples: int) -> torch.Tensor:
        return torch.zeros(examples, *self.shape)

    def examples(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.low + (self.high - self.low) * _from_0_to_1(numbers)

    def cost(self, numbers: torch.Tensor) -> torch.Tensor:
        return total_variation(_from_0_to_1(numbers)) / _STEP


def _from_0_to_1(numbers: torch.Tensor) -> torch.Tensor:
    """A sigmoid, stretched by a tenth on either side and cut: both ends are reached."""
    return (1.2 * torch.sigmoid(numbers) - 0.1).clamp(0, 1)

"""Priors: distributions of examples that an attacker assumes before it sees any report.

A prior describes an example by a vector of free numbers. A search can set these numbers to any
values, and the prior maps them to an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from fedveil.attacks.attack_randomness import generator
from fedveil.attacks.smoothness import total_variation

#: Width of the Laplace density of neighbouring pixels' differences, as a share of the range.
_STEP = 0.1


class Search(NamedTuple):
    """A search for an example: the spread of its numbers at the start, and its first step size."""

    spread: float
    rate: float


#: Searches for an image. One begins at equal pixels, which leave no noise where the reports reveal
#: nothing. But behind a normalisation they give 0 in every channel, where a ReLU has no slope, so
#: two begin at unequal ones. Large steps find digits behind flipped bits, small ones photographs.
_SEARCHES = (Search(0.0, 0.3), Search(0.3, 0.3), Search(0.3, 0.1))


class Prior(Protocol):
    """A distribution of examples, parametrised by free numbers that a search optimises.

    `searches` are the settings of the searches that an attacker tries.
    """

    @property
    def searches(self) -> Sequence[Search]: ...

    def start(self, examples: int, spread: float) -> torch.Tensor:
        """Return the free numbers of `examples` likely examples, plus noise of this `spread`."""

    def examples(self, numbers: torch.Tensor) -> torch.Tensor: ...

    def cost(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return -ln of the density at each example's numbers, up to a constant: [examples]."""


@dataclass(frozen=True)
class Gaussian:
    """Normal prior over the flattened example, with the covariance `factor` @ `factor`.T."""

    mean: torch.Tensor
    factor: torch.Tensor
    searches: Sequence[Search] = (Search(0.0, 0.1),)

    @classmethod
    def of(cls, public: torch.Tensor, floor: float = 1e-3) -> Gaussian:
        """Fit a normal prior to public examples. Adds `floor` to the variance of every value."""
        flat = public.flatten(1).double()
        mean = flat.mean(dim=0)
        centred = flat - mean
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(flat))
        factor = vectors * (values.clamp(min=0) + floor).sqrt()
        return cls(mean.to(public.dtype).reshape(public.shape[1:]), factor.to(public.dtype))

    @classmethod
    def standard(cls, shape: tuple[int, ...]) -> Gaussian:
        """Return the prior of examples of this shape whose features are independent N(0, 1)."""
        mean = torch.zeros(shape)
        return cls(mean, torch.eye(mean.numel()))

    def start(self, examples: int, spread: float) -> torch.Tensor:
        return spread * _noise(examples, self.factor.shape[1]).to(self.factor)

    def examples(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.mean + (numbers @ self.factor.T).reshape(-1, *self.mean.shape)

    def cost(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.square().sum(dim=1) / 2


@dataclass(frozen=True)
class Smooth:
    """Prior of images with values from `low` to `high` and mostly similar neighbouring pixels."""

    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    searches: Sequence[Search] = _SEARCHES

    def start(self, examples: int, spread: float) -> torch.Tensor:
        return spread * _noise(examples, *self.shape)

    def examples(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.low + (self.high - self.low) * _from_0_to_1(numbers)

    def cost(self, numbers: torch.Tensor) -> torch.Tensor:
        return total_variation(_from_0_to_1(numbers)) / _STEP


def _from_0_to_1(numbers: torch.Tensor) -> torch.Tensor:
    """Map numbers to [0, 1] by a sigmoid, stretched and clipped so that it reaches 0 and 1."""
    return (1.2 * torch.sigmoid(numbers) - 0.1).clamp(0, 1)


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(0, "first images"))

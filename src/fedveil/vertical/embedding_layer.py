"""EmbeddingDP as a layer of a torch model."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from fedveil.base.validate import choice
from fedveil.entropy import Entropy
from fedveil.mechanisms.embedding_dp import EmbeddingDP, EmbeddingLoss


class EmbeddingDPLayer(nn.Module):
    """Replaces its input by EmbeddingDP bits, 0 or 1, of the same shape and dtype.

    The layer protects in training and in evaluation. It caches no bits, so each forward pass of an
    example costs `loss` again. By default, `entropy` is the operating system's randomness.

    `gradient` controls the backward pass:

    - "straight_through" passes the gradient of the bits on to the layers below, so that they learn.
      The true derivative of the bits is 0 almost everywhere.
    - "none" passes nothing on. The party that receives the bits then need not return a gradient.

        >>> import torch
        >>> from torch import nn
        >>> from fedveil.vertical import EmbeddingDPLayer
        >>> bottom = nn.Sequential(nn.Linear(5, 3), EmbeddingDPLayer(eps=2.0))
        >>> sorted(set(bottom(torch.randn(40, 5)).flatten().tolist()))
        [0.0, 1.0]
    """

    def __init__(
        self,
        eps: float | None = None,
        gradient: Literal["straight_through", "none"] = "straight_through",
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__()
        self.mechanism = EmbeddingDP(eps)
        self.gradient = choice("gradient", gradient, ("straight_through", "none"))
        self._entropy = entropy

    @property
    def loss(self) -> EmbeddingLoss:
        """Return the privacy loss of one forward pass of an example.

        The result states it for three units: `per_bit` for one value, `per_row` for a one-hot row,
        and `per_vector(m)` for a vector of m values.
        """
        return self.mechanism.loss

    def forward(self, embedding: torch.Tensor) -> torch.Tensor:
        if self.gradient == "none":
            return self.mechanism(embedding, self._entropy)
        through: Any = _StraightThrough
        bits: torch.Tensor = through.apply(embedding, self.mechanism, self._entropy)
        return bits

    def extra_repr(self) -> str:
        return f"eps={self.mechanism.eps}, gradient={self.gradient}"


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embedding: torch.Tensor, mechanism: EmbeddingDP, entropy: Entropy | None
    ) -> torch.Tensor:
        return mechanism(embedding, entropy)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0], None, None

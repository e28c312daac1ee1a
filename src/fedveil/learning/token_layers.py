"""Layers over the vectors of tokens, [examples, tokens, width]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


class Positions(nn.Module):
    """Adds to the vector of each token that of its place, which is learnt."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight[: x.shape[1]]


class CausalLayer(nn.TransformerEncoderLayer):
    """Attention and two dense layers, each after a norm and beside what came in.

    Guarantee: what comes out for a token does not depend on any later one.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        activation: Callable[[torch.Tensor], torch.Tensor] = functional.relu,
    ) -> None:
        super().__init__(width, heads, hidden, 0.0, activation, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        later = nn.Transformer.generate_square_subsequent_mask(
            x.shape[1], device=x.device, dtype=x.dtype
        )
        return super().forward(x, src_mask=later, is_causal=True)

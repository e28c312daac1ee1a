"""Layers for token vectors, of shape [examples, tokens, width]."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional


class Positions(nn.Module):
    """Adds a learnt position embedding to each token's vector."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight[: x.shape[1]]


class CausalLayer(nn.TransformerEncoderLayer):
    """A pre-norm transformer layer with causal self-attention and two dense layers.

    Guarantee: the output for a token does not depend on any later token.
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


@contextmanager
def beyond_is_nan(model: nn.Module) -> Iterator[None]:
    """A context in which the model's embeddings return NaN for an index out of range.

    Otherwise such an index raises an error which, on a GPU, breaks the training of all clients in
    the process.
    """
    known: dict[nn.Module, torch.Tensor] = {}

    def within(table: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        assert isinstance(table, nn.Embedding)
        index, *others = inputs
        last = table.num_embeddings - 1
        known[table] = (index >= 0) & (index <= last)
        return (index.clamp(0, last), *others)

    def marked(table: nn.Module, _: object, found: torch.Tensor) -> torch.Tensor:
        return torch.where(known.pop(table)[..., None], found, math.nan)

    hooks = []
    for table in model.modules():
        if isinstance(table, nn.Embedding):
            hooks.append(table.register_forward_pre_hook(within))
            hooks.append(table.register_forward_hook(marked, prepend=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

"""A decoder-only language model like PanGu-alpha, made of three modules for a split model.

    WordAndPosition    tokens -> vectors: a row of the word table plus a row of the position table
    Backbone           vectors -> vectors: transformer layers, and the query layer on top of them
    TiedHead           vectors -> logits: inner products with the rows of the same word table

The query layer is a transformer layer with a learned query vector for each position (the top
query), which replaces the token's own query. Its output predicts the next token. Every layer is
pre-LayerNorm with GELU. Attention is causal. There is no dropout. The word table is used at both
ends, so both ends belong to the party with the text. The backbone knows neither the size of the
vocabulary nor a token.

Two differences from PanGu-alpha are for EmbeddingDP, and cost nothing without it:

- the backbone normalises its input, which EmbeddingDP turns into vectors of 0 and 1. Their mean and
  scale carry no information, and would otherwise outweigh the output of every layer;
- initial word vectors are four times larger than position vectors. EmbeddingDP sends only the sign
  of each entry of their sum. If both had the same size, the sign would reveal little of either.

Initial weights are otherwise GPT-2's: N(0, 0.02²), projections into the residual stream smaller by
1/sqrt(2 layers), and biases 0. The word table's standard deviation is 0.64/sqrt(width), so that
initial scores do not depend on the width. The gain of the backbone's first LayerNorm also starts at
0.64/sqrt(width).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedveil.base.validate import integer
from fedveil.errors import InvalidValue

_STD = 0.02
_WORD_STD = 0.64  # divided by sqrt(width)
_POSITION_SHARE = 0.25


@dataclass(frozen=True)
class Shape:
    """The sizes of a language model. `layers` counts the last layer (with learned queries) too."""

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "width", "layers", "heads"):
            integer(name, getattr(self, name), 1)
        if self.width % self.heads:
            raise InvalidValue(
                f"width = {self.width} is not a multiple of heads = {self.heads}: every head has "
                f"the same share of it"
            )


#: Shapes by name. `350M` is the usual shape of that size; the source's example has 16 layers of
#: 1,280.
PRESETS: dict[str, Shape] = {
    "tiny": Shape(vocabulary=1024, context=128, width=128, layers=4, heads=4),
    "small": Shape(vocabulary=8192, context=512, width=512, layers=8, heads=8),
    "350M": Shape(vocabulary=40_000, context=1024, width=1024, layers=24, heads=16),
    "1.3B": Shape(vocabulary=40_000, context=1024, width=2048, layers=24, heads=16),
    "2.6B": Shape(vocabulary=40_000, context=1024, width=2560, layers=32, heads=32),
}


def _word_std(shape: Shape) -> float:
    return _WORD_STD / math.sqrt(shape.width)


class Memory:
    """A cache of one layer's keys and values, both (examples, heads, positions, head size)."""

    def __init__(self) -> None:
        self._held: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        return 0 if self._held is None else self._held[0].shape[2]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new positions. Returns all keys and values so far."""
        if self._held is not None:
            seen_keys, seen_values = self._held
            keys = torch.cat([seen_keys, keys], dim=2)
            values = torch.cat([seen_values, values], dim=2)
        self._held = keys, values
        return keys, values


class WordAndPosition(nn.Module):
    """Maps tokens to vectors: a row of the word table plus a row of the position table."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        nn.init.normal_(self.word.weight, std=_word_std(shape))
        nn.init.normal_(self.position.weight, std=_POSITION_SHARE * _word_std(shape))

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Map tokens (examples, length) to vectors. The first token is at position `start`."""
        length = tokens.shape[1]
        vectors: Tensor = self.word(tokens) + self.position.weight[start : start + length]
        return vectors


class Backbone(nn.Module):
    """Transformer layers between two LayerNorms. In the last layer, attention queries are learned.

    These queries depend only on the position. Guarantee: the output at a position does not depend
    on the input at any later position.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.entry = nn.LayerNorm(shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers - 1))
        self.query = nn.Embedding(shape.context, shape.width)
        self.query_layer = Layer(shape)
        self.final = nn.LayerNorm(shape.width)
        nn.init.normal_(self.query.weight, std=_STD)
        nn.init.constant_(self.entry.weight, _word_std(shape))

    def new_memory(self) -> list[Memory]:
        """Return an empty cache for each layer, for a sequence that comes in pieces."""
        return [Memory() for _ in range(len(self.layers) + 1)]

    def forward(self, vectors: Tensor, memory: Sequence[Memory] | None = None) -> Tensor:
        """Map vectors (examples, length, width) to outputs of the same shape.

        With `memory`, made by `new_memory`, the vectors continue the sequence of all earlier calls
        with this memory. The outputs are those of one call with the whole sequence.
        """
        memories = [None] * (len(self.layers) + 1) if memory is None else memory
        start = memory[0].length if memory else 0
        hidden = self.entry(vectors)
        for layer, seen in zip(self.layers, memories, strict=False):
            hidden = layer(hidden, memory=seen)
        query = self.query.weight[start : start + vectors.shape[1]]
        hidden = self.query_layer(hidden, query[None], memory=memories[-1])
        result: Tensor = self.final(hidden)
        return result


class Layer(nn.Module):
    """One transformer layer. It maps x to y + feedforward(LayerNorm(y)).

    Here y = x + attention(LayerNorm(x)).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(width)
        self.ask = nn.Linear(width, width)
        self.keys_and_values = nn.Linear(width, 2 * width)
        self.attended = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        smaller = _STD / math.sqrt(2 * shape.layers)
        for linear in (self.ask, self.keys_and_values, self.attended, self.widen, self.narrow):
            into_residual = linear is self.attended or linear is self.narrow
            nn.init.normal_(linear.weight, std=smaller if into_residual else _STD)
            nn.init.zeros_(linear.bias)

    def forward(
        self, hidden: Tensor, query: Tensor | None = None, memory: Memory | None = None
    ) -> Tensor:
        """Map vectors (examples, length, width) to outputs of the same shape.

        Attention queries are computed from `query`, (1, length, width), which all examples share.
        Without `query` they are computed from the layer's own input. `memory` is a cache of earlier
        positions.
        """
        normed = self.attention_norm(hidden)
        asked = self._by_head(self.ask(normed if query is None else query))
        keys, values = map(self._by_head, self.keys_and_values(normed).chunk(2, dim=2))
        if memory is not None:
            keys, values = memory.extend(keys, values)
        mixed = _attend(asked.expand(len(hidden), -1, -1, -1), keys, values)
        hidden = hidden + self.attended(mixed.transpose(1, 2).flatten(2))
        fed = self.narrow(functional.gelu(self.widen(self.feed_norm(hidden))))
        result: Tensor = hidden + fed
        return result

    def _by_head(self, vectors: Tensor) -> Tensor:
        return vectors.view(*vectors.shape[:2], self.heads, -1).transpose(1, 2)


def _attend(asked: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the output of causal attention for the queries `asked`, in the shape of `asked`.

    All arguments are (examples, heads, positions, head size). The queries belong to the last
    positions, `keys` and `values` to all positions.
    """
    questions, positions = asked.shape[2], keys.shape[2]
    if questions == positions:
        return functional.scaled_dot_product_attention(asked, keys, values, is_causal=True)
    seen = torch.ones(questions, positions, dtype=torch.bool, device=asked.device)
    mask = seen.tril(positions - questions)
    return functional.scaled_dot_product_attention(asked, keys, values, attn_mask=mask)


class TiedHead(nn.Module):
    """Maps vectors to logits: inner products with the rows of a shared word table."""

    def __init__(self, word: nn.Embedding) -> None:
        super().__init__()
        self.word = word

    def forward(self, hidden: Tensor) -> Tensor:
        """Map vectors (..., width) to logits (..., vocabulary)."""
        return functional.linear(hidden, self.word.weight)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the tokens `labels` (examples, length), in nats."""
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())

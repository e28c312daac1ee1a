"""Random chains of known layers, drawn by hypothesis, and clients for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedveil.base.example_arrays import IGNORED
from fedveil.learning.token_layers import CausalLayer, Positions
from fedveil.learning.trainer import ClientData

CURVES = [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, lambda: nn.GELU("tanh")]
SIZES = (7, 1, 0, 10)


@st.composite
def chains(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Draw a chain of known layers that fit together, and the shape of its examples."""
    torch.manual_seed(draw(st.integers(0, 1 << 30)))
    shape = (draw(st.integers(1, 3)), draw(st.integers(5, 11)), draw(st.integers(5, 11)))
    c, h, w = shape
    layers: list[nn.Module] = []
    small = st.integers(1, 3)
    for _ in range(draw(st.integers(0, 4))):
        what = draw(st.sampled_from(["conv", "conv and pool", "pool", "mean", "norm", "curve"]))
        if what.startswith("conv"):
            kernel = (draw(st.integers(1, min(h, 4))), draw(st.integers(1, min(w, 4))))
            stride, border = (draw(small), draw(small)), (draw(small) - 1, draw(small) - 1)
            bias, filters = draw(st.booleans()), draw(st.integers(1, 9))
            layers.append(nn.Conv2d(c, filters, kernel, stride, border, bias=bias))
            c = filters
            h = (h + 2 * border[0] - kernel[0]) // stride[0] + 1
            w = (w + 2 * border[1] - kernel[1]) // stride[1] + 1
            layers.append(draw(st.sampled_from(CURVES))())
        if what.endswith("pool") or what == "mean":
            kernel = (draw(st.integers(1, min(h, 3))), draw(st.integers(1, min(w, 3))))
            stride = (draw(small), draw(small))
            border = (draw(st.integers(0, kernel[0] // 2)), draw(st.integers(0, kernel[1] // 2)))
            kind = nn.AvgPool2d if what == "mean" else nn.MaxPool2d
            layers.append(kind(kernel, stride, border))
            h = (h + 2 * border[0] - kernel[0]) // stride[0] + 1
            w = (w + 2 * border[1] - kernel[1]) // stride[1] + 1
        if what == "norm":
            groups = draw(st.sampled_from([g for g in range(1, c + 1) if c % g == 0]))
            norm = draw(st.sampled_from([nn.GroupNorm(groups, c), nn.LayerNorm([c, h, w])]))
            layers.append(norm if c * h * w // groups > 1 else nn.Identity())
        if what == "curve":
            layers.append(draw(st.sampled_from(CURVES))())
    layers.append(nn.Flatten())
    width = c * h * w
    for _ in range(draw(st.integers(0, 2))):
        wide = draw(st.integers(2, 40))
        layers += [
            nn.Linear(width, wide, bias=draw(st.booleans())),
            draw(st.sampled_from(CURVES))(),
        ]
        if draw(st.booleans()):
            layers.append(nn.LayerNorm(wide))
        width = wide
    return nn.Sequential(*layers, nn.Linear(width, 5)), shape


@st.composite
def dense_chains(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Draw dense layers whose steps may be deferred if they are large, and layers after them."""
    torch.manual_seed(draw(st.integers(0, 1 << 30)))
    widths = draw(st.lists(st.sampled_from([40, 64, 72, 33]), min_size=2, max_size=4))
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [
            nn.Linear(inputs, outputs, bias=draw(st.booleans())),
            draw(st.sampled_from(CURVES))(),
        ]
        if draw(st.booleans()):
            layers.append(nn.LayerNorm(outputs))
    return nn.Sequential(*layers, nn.Linear(widths[-1], 5)), (widths[0],)


TOKENS = 11


@st.composite
def token_chains(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Draw a chain that begins with an embedding of `TOKENS`, and the shape of its examples."""
    torch.manual_seed(draw(st.integers(0, 1 << 30)))
    length, width = draw(st.integers(1, 6)), draw(st.sampled_from([8, 16, 5]))
    layers: list[nn.Module] = [nn.Embedding(TOKENS, width)]
    for _ in range(draw(st.integers(0, 2)) if width % 8 == 0 else 0):
        wide = draw(st.sampled_from([8, 24, 40]))
        layers += [nn.LayerNorm(width), nn.Linear(width, wide, bias=draw(st.booleans()))]
        layers.append(draw(st.sampled_from(CURVES))())
        width = wide
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(length * width, 5)), (length,)


@st.composite
def word_chains(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Draw a chain from tokens to scores of each next token, with layers of every kind."""
    torch.manual_seed(draw(st.integers(0, 1 << 30)))
    length, width = draw(st.integers(1, 6)), draw(st.sampled_from([8, 16]))
    layers: list[nn.Module] = [nn.Embedding(TOKENS, width)]
    if draw(st.booleans()):
        layers.append(Positions(draw(st.integers(length, 7)), width))
    for _ in range(draw(st.integers(0, 2))):
        layers.append(transformer_layer(width, draw(st.integers(0, 23))))
    if draw(st.booleans()):
        layers.append(nn.LayerNorm(width))
    return nn.Sequential(*layers, nn.Linear(width, TOKENS, bias=draw(st.booleans()))), (length,)


def transformer_layer(width: int, kind: int) -> nn.Module:
    """Return one of 24 layers, which differ in heads, class, hidden width and activation."""
    heads, hidden = max(1, kind % 2 * width // 8), (24, 40, 8)[kind // 2 % 3]
    curve = (functional.relu, functional.gelu)[kind // 6 % 2]
    if kind < 12:
        return CausalLayer(width, heads, hidden, curve)
    return nn.TransformerEncoderLayer(
        width, heads, hidden, 0.0, curve, batch_first=True, norm_first=kind % 5 == 0
    )


def of_words(cohort: Sequence[ClientData]) -> list[ClientData]:
    """Return the clients with tokens as examples and as targets, some of which are ignored."""
    made = []
    for client in of_tokens(cohort):
        y = (client.x * 3 + 1) % TOKENS
        y[client.x == 2] = IGNORED
        y[2:3] = IGNORED
        made.append(replace(client, y=y))
    return made


def of_tokens(cohort: Sequence[ClientData]) -> list[ClientData]:
    """Return the clients with tokens as examples."""
    return [replace(client, x=(client.x * TOKENS).long()) for client in cohort]


def signed(cohort: Sequence[ClientData]) -> list[ClientData]:
    """Return the clients with positive and negative examples."""
    return [replace(client, x=4 * client.x - 2) for client in cohort]

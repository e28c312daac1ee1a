"""A transformer layer as a chain of known layers with residual connections.

x + f(x) becomes three parts: `Branch` copies x, the layers of f change the copy, `Join` adds x.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fedveil.learning.token_layers import CausalLayer

_Activation = Callable[[torch.Tensor], torch.Tensor]


class Branch(nn.Module):
    """The start of a residual connection. Later layers work on a copy of its input."""


class Join(nn.Module):
    """The end of a residual connection. It adds the input of its `Branch` to its own input.

    Its `Branch` is the nearest earlier one that belongs to no other `Join`.
    """


class Heads(nn.Module):
    """Multi-head attention without its dense layers.

    The input has, for each token, its query, key and value joined to one vector.
    """

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal


def chain_of(layer: nn.TransformerEncoderLayer) -> list[nn.Module] | None:
    """Return a standard transformer layer as a chain of known layers, or None if it is not one."""
    attention, curve = layer.self_attn, _curve(layer.activation)
    drops, asked = (layer.dropout, layer.dropout1, layer.dropout2), _asked(attention)
    plain = all(type(dense) is nn.Linear for dense in (layer.linear1, layer.linear2))
    plain = plain and all(type(norm) is nn.LayerNorm for norm in (layer.norm1, layer.norm2))
    plain = plain and all(type(drop) is nn.Dropout for drop in drops)
    if asked is None or curve is None or not plain:
        return None
    heads = Heads(attention.num_heads, type(layer) is CausalLayer)
    attend = [asked, heads, attention.out_proj, layer.dropout1]
    feed = [layer.linear1, curve, layer.dropout, layer.linear2, layer.dropout2]
    if layer.norm_first:
        return [Branch(), layer.norm1, *attend, Join(), Branch(), layer.norm2, *feed, Join()]
    return [Branch(), *attend, Join(), layer.norm1, Branch(), *feed, Join(), layer.norm2]


def _asked(attention: nn.MultiheadAttention) -> nn.Linear | None:
    """Return the dense layer that computes the queries, keys and values of `attention`.

    Returns None if `attention` is of an unsupported form.
    """
    plain = type(attention) is nn.MultiheadAttention and attention.batch_first
    plain = plain and attention.bias_k is None and not attention.add_zero_attn
    plain = plain and type(attention.out_proj) is NonDynamicallyQuantizableLinear
    if not plain or attention.dropout or attention.in_proj_weight is None:
        return None
    outputs, inputs = attention.in_proj_weight.shape
    layer = nn.Linear(inputs, outputs, bias=attention.in_proj_bias is not None, device="meta")
    layer.weight = attention.in_proj_weight
    if attention.in_proj_bias is not None:
        layer.bias = attention.in_proj_bias
    return layer


def _curve(activation: _Activation) -> nn.Module | None:
    if activation is functional.relu:
        return nn.ReLU()
    if activation is functional.gelu:
        return nn.GELU()
    return activation if type(activation) in (nn.ReLU, nn.GELU) else None  # type: ignore[return-value]

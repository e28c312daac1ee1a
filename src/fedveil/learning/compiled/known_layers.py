"""Reading a model as a sequence of layers that are known."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedveil.learning.compiled.residual import chain_of
from fedveil.learning.token_layers import CausalLayer, Positions

#: Activations that keep the order of values: they may as well follow a max-pooling.
RISING = (nn.ReLU, nn.Tanh, nn.Sigmoid)
KNOWN = (
    nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, *RISING, nn.GELU, nn.GroupNorm, nn.LayerNorm,
    nn.Dropout, nn.Embedding, Positions, nn.Flatten, nn.Identity,
)  # fmt: skip


def plain_layers(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a plain chain in their order; None where it is anything else.

    Each is one of torch's own that are known, does nothing but what its class does, and its
    weights are its own, trained, float32 and on the CPU.
    """
    layers = _unrolled(model)
    if layers is None:
        return None
    parameters = [p for layer in layers for p in layer.parameters()]
    plain = all(
        p.requires_grad and p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters
    )
    shared = len({id(p) for p in parameters}) < len(parameters)
    buffers = any(True for _ in model.buffers())
    return None if not parameters or not plain or shared or buffers else layers


def _unrolled(model: nn.Module) -> list[nn.Module] | None:
    """The layers in their order, those of nested chains too; None where one is not known."""
    if not _is_untouched(model):
        return None
    if isinstance(model, nn.TransformerEncoderLayer):
        plain = type(model) in (nn.TransformerEncoderLayer, CausalLayer)
        return chain_of(model) if plain and all(map(_is_untouched, model.modules())) else None
    if type(model) is not nn.Sequential:
        return [model] if type(model) in KNOWN else None
    parts = [_unrolled(child) for child in model]
    return None if None in parts else [layer for part in parts if part for layer in part]


def _is_untouched(module: nn.Module) -> bool:
    """Whether calling the module does what its class does and nothing else."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
        nn.modules.module._global_forward_hooks,
        nn.modules.module._global_forward_pre_hooks,
        nn.modules.module._global_backward_hooks,
        nn.modules.module._global_backward_pre_hooks,
    )
    return "forward" not in vars(module) and not any(hooks)


def ordered(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The layers that do something; a pooling comes before the rising activation that it follows.

    The largest of some values is the same before and after, and there are fewer of them.
    """
    left = [
        layer
        for layer in layers
        if not (isinstance(layer, nn.Identity) or (isinstance(layer, nn.Dropout) and layer.p == 0))
    ]
    for i in range(2, len(left)):
        conv, curve, pool = left[i - 2 : i + 1]
        if isinstance(conv, nn.Conv2d) and isinstance(curve, RISING) and _is_pool(pool):
            left[i - 1], left[i] = pool, curve
    return left


def _is_pool(layer: nn.Module) -> bool:
    return isinstance(layer, nn.MaxPool2d)


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of what torch takes as one number or two."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))

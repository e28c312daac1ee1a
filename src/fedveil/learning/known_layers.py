"""Recognises models that are a sequence of known layers."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from fedveil.learning.residual import chain_of


def plain_layers(model: nn.Module, known: Collection[type[nn.Module]]) -> list[nn.Module] | None:
    """Return the layers of a sequential model in order, or None for any other model.

    Also returns None if a layer's class is not in `known`, if a layer has hooks or buffers, or if
    weights are missing, frozen, shared by layers, not float32 or not on the CPU.
    """
    layers = _unrolled(model, known)
    if layers is None:
        return None
    parameters = [p for layer in layers for p in layer.parameters()]
    plain = all(
        p.requires_grad and p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters
    )
    shared = len({id(p) for p in parameters}) < len(parameters)
    buffers = any(True for _ in model.buffers())
    return None if not parameters or not plain or shared or buffers else layers


def _unrolled(model: nn.Module, known: Collection[type[nn.Module]]) -> list[nn.Module] | None:
    """Return a model's layers in order, without nesting, or None if a class is not in `known`."""
    if type(model) is nn.Sequential and _is_untouched(model):
        parts = [_unrolled(child, known) for child in model]
        return None if None in parts else [layer for part in parts if part for layer in part]
    if type(model) not in known or not all(map(_is_untouched, model.modules())):
        return None
    return chain_of(model) if isinstance(model, nn.TransformerEncoderLayer) else [model]


def _is_untouched(module: nn.Module) -> bool:
    """Return True if the module has no hooks and no replaced `forward`."""
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

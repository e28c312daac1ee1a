"""The numbers that a model is computed in while it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def computing(
    forward: Callable[..., Any], precision: str, device: torch.device
) -> Callable[..., Any]:
    """A forward pass in these numbers, that gives float32.

    bfloat16 is mixed precision: products, convolutions and the gradients that come of them are of
    16 bits; what is sensitive (norms, softmax), the weights, their gradients and all that an
    optimiser makes of these are float32. Its range is float32's: no loss has to be scaled.
    """
    if precision == "float32":
        return forward

    def passing(*inputs: Any, **named: Any) -> Any:
        # A cast weight is not kept: under vmap it would outlive the transform that it is of.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            outputs = forward(*inputs, **named)
        return _in_float32(outputs)

    return passing


def _in_float32(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.float() if part.dtype == torch.bfloat16 else part
    if isinstance(part, Mapping):
        return {name: _in_float32(value) for name, value in part.items()}
    return tuple(map(_in_float32, part)) if isinstance(part, tuple | list) else part

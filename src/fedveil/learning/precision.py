"""The number format of training: float32, or bfloat16 where it is precise enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def computing(
    forward: Callable[..., Any], precision: str, device: torch.device
) -> Callable[..., Any]:
    """Wrap `forward` so that it computes in `precision` and returns float32.

    With bfloat16, matrix products, convolutions and their gradients have 16 bits. Sensitive
    operations (norms, softmax), weights, their gradients and the optimiser's state are float32.
    """
    if precision == "float32":
        return forward

    def passing(*inputs: Any, **named: Any) -> Any:
        # Do not cache cast weights: under vmap they would outlive their transform.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            outputs = forward(*inputs, **named)
        return _in_float32(outputs)

    return passing


def _in_float32(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.float() if part.dtype == torch.bfloat16 else part
    if isinstance(part, Mapping):
        return {name: _in_float32(value) for name, value in part.items()}
    if isinstance(part, tuple | list):
        return getattr(type(part), "_make", tuple)(map(_in_float32, part))  # a named tuple's
    return part

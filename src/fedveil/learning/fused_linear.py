"""A dense layer whose SGD step is fused into the product that makes its gradient.

Plain SGD on a weight W does W -= lr * g.T @ x. Autograd would write the product out, then read
it back to subtract it; `W.addmm_(g.T, x, alpha=-lr)` does both at once and never holds the
gradient. The steps wait until the whole backward pass is over, so that every gradient is taken
at the old weights however often, and wherever else, the weight is used.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn

#: Smaller weights gain less from the fusion than its bookkeeping costs.
MIN_ELEMENTS = 1 << 16


class FusedSteps:
    """The postponed steps of a model's large dense layers."""

    def __init__(self, model: nn.Module) -> None:
        self._pending: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for module in model.modules():
            if _fusible(module):
                module.forward = types.MethodType(self._forward, module)

    def _forward(self, module: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and module.training and not torch.is_autocast_enabled():
            y: torch.Tensor = _Product.apply(x, module.weight, module.bias, self._pending)  # type: ignore[no-untyped-call]
            return y
        return nn.functional.linear(x, module.weight, module.bias)

    def apply(self, lr: float) -> None:
        """Take the steps of the backward pass that has just ended."""
        for weight, gradient, x in self._pending:
            weight.addmm_(gradient.t(), x, alpha=-lr)
        self.clear()

    def clear(self) -> None:
        """Forget steps that were left by a pass that failed."""
        self._pending.clear()


def _fusible(module: nn.Module) -> bool:
    # A parametrised or hook-reweighted layer is another class, or has no such parameter.
    if type(module) is not nn.Linear or "weight" not in module._parameters:
        return False
    weight = module.weight
    return weight.requires_grad and weight.numel() >= MIN_ELEMENTS and not weight.is_cuda


class _Product(torch.autograd.Function):
    """x @ W.T + b whose backward gives no gradient for W, and notes the step instead."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        pending: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pending = pending
        ctx.has_bias = bias is not None
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat = gradient.reshape(-1, gradient.shape[-1])
        ctx.pending.append((weight, flat, x.reshape(-1, x.shape[-1])))
        for_x = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
        for_bias = flat.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return for_x, None, for_bias, None

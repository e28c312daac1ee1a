"""SGD steps written out for models that are a plain chain of layers.

Small models on a CPU spend as long between the products as in them. A top-level `nn.Sequential`
of well-known layers needs no tape: every layer is run forward and then backward, taking its own
step on the way as soon as its gradient is known, into the product where that is possible. Loss,
gradients and steps are those of autograd, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from fedveil.learning.pooled_convolution import PooledConvolution, fits


class Layer(Protocol):
    """One layer: `backward` takes its step, and gives the gradient of its input where wanted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output."""

    def backward(self, gradient: torch.Tensor, lr: float, wanted: bool) -> torch.Tensor | None:
        """The way back, for the last output."""


class Chain:
    """A model's layers, trained by plain SGD on the cross-entropy of their last output."""

    def __init__(self, layers: Sequence[Layer], first: int) -> None:
        self._layers = layers
        self._first = first

    @classmethod
    def of(cls, model: nn.Module) -> Chain | None:
        """The chain that a model is; None where it is anything else, or may do anything else."""
        modules = unrolled(model)
        if modules is None or not any(True for _ in model.parameters()):
            return None
        parameters = [p for module in modules for p in module.parameters()]
        plain = all(
            p.requires_grad and p.dtype == torch.float32 and p.device.type == "cpu"
            for p in parameters
        )
        shared = len({id(p) for p in parameters}) < len(parameters)
        if not plain or shared:
            return None
        first = next(place for place, module in enumerate(modules) if [*module.parameters()])
        return cls(_layers(modules, first), first)

    @torch.no_grad()
    def step(self, x: torch.Tensor, y: torch.Tensor, lr: float) -> None:
        """One step of w -= lr * gradient on a batch."""
        for layer in self._layers:
            x = layer.forward(x)
        gradient: torch.Tensor | None = cross_entropy_gradient(x, y)
        for place in reversed(range(self._first, len(self._layers))):
            assert gradient is not None
            gradient = self._layers[place].backward(gradient, lr, wanted=place > self._first)


def cross_entropy_gradient(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient of the mean cross-entropy, from the operators that autograd would call."""
    aten = torch.ops.aten
    log_p = torch.log_softmax(logits, 1)
    loss, weight = aten.nll_loss_forward(log_p, y, None, 1, -100)
    gradient = aten.nll_loss_backward(torch.ones_like(loss), log_p, y, None, 1, -100, weight)
    out: torch.Tensor = aten._log_softmax_backward_data(gradient, log_p, 1, torch.float32)
    return out


def unrolled(model: nn.Module) -> list[nn.Module] | None:
    """The layers in their order, those of nested chains too; None where one is not known."""
    if not _is_untouched(model):
        return None
    if type(model) is not nn.Sequential:
        return [model] if type(model) in _KNOWN else None
    parts = [unrolled(child) for child in model]
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


def _layers(modules: Sequence[nn.Module], first: int) -> list[Layer]:
    layers: list[Layer] = []
    place = 0
    while place < len(modules):
        match modules[place : place + 3]:
            case [nn.Conv2d() as conv, nn.ReLU(), nn.MaxPool2d() as pool] if fits(conv, pool):
                layers.append(PooledConvolution(conv, first=place == first))
                place += 3
            case [module, *_]:
                layers.append(_KNOWN[type(module)](module))
                place += 1
    return layers


class _Dense:
    """x W' + b. The step W -= lr g' x is one product into the weight; no gradient is held."""

    def __init__(self, module: nn.Linear) -> None:
        self._weight = module.weight.detach()
        self._bias = None if module.bias is None else module.bias.detach()
        self._x = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._x = x
        return nn.functional.linear(x, self._weight, self._bias)

    def backward(self, gradient: torch.Tensor, lr: float, wanted: bool) -> torch.Tensor | None:
        for_x = gradient.matmul(self._weight) if wanted else None
        flat = gradient.reshape(-1, gradient.shape[-1])
        self._weight.addmm_(flat.t(), self._x.reshape(-1, self._x.shape[-1]), alpha=-lr)
        if self._bias is not None:
            self._bias.sub_(flat.sum(0), alpha=lr)
        return for_x


class _Convolution:
    """A convolution in torch's own products."""

    def __init__(self, module: nn.Conv2d) -> None:
        self._module = module
        self._weight = module.weight.detach()
        self._bias = None if module.bias is None else module.bias.detach()
        self._x = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._x = x
        out: torch.Tensor = self._module(x)
        return out

    def backward(self, gradient: torch.Tensor, lr: float, wanted: bool) -> torch.Tensor | None:
        module, biased = self._module, self._bias is not None
        assert isinstance(module.padding, tuple)
        for_x, for_weight, for_bias = torch.ops.aten.convolution_backward(
            gradient,
            self._x,
            self._weight,
            [module.out_channels] if biased else None,
            module.stride,
            module.padding,
            module.dilation,
            False,
            [0, 0],
            module.groups,
            [wanted, True, biased],
        )
        self._weight.sub_(for_weight, alpha=lr)
        if self._bias is not None:
            self._bias.sub_(for_bias, alpha=lr)
        return for_x if wanted else None


class _Activation:
    """An activation whose derivative is told by its output. Never in place: others hold `x`."""

    def __init__(self, module: nn.Module) -> None:
        self._forward, self._backward = _ACTIVATIONS[type(module)]
        self._y = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._y = self._forward(x)
        return self._y

    def backward(self, gradient: torch.Tensor, lr: float, wanted: bool) -> torch.Tensor | None:
        return self._backward(gradient, self._y)


_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[..., torch.Tensor], ...]] = {
    nn.ReLU: (torch.relu, lambda g, y: torch.ops.aten.threshold_backward(g, y, 0)),
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid, torch.ops.aten.sigmoid_backward),
}


class _Pool:
    """Max-pooling."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        shape = (module.kernel_size, module.stride, module.padding, module.dilation)
        self._shape = [[n, n] if isinstance(n, int) else list(n) for n in shape]
        self._ceil = module.ceil_mode
        self._x = self._indices = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._x = x
        arguments = (x, *self._shape, self._ceil)
        y, self._indices = torch.ops.aten.max_pool2d_with_indices(*arguments)
        out: torch.Tensor = y
        return out

    def backward(self, gradient: torch.Tensor, lr: float, wanted: bool) -> torch.Tensor | None:
        arguments = (gradient, self._x, *self._shape, self._ceil, self._indices)
        out: torch.Tensor = torch.ops.aten.max_pool2d_with_indices_backward(*arguments)
        return out


class _Reshaping:
    """Flattening, and layers that do nothing."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._shape = torch.Size()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._shape = x.shape
        out: torch.Tensor = self._module(x)
        return out

    def backward(self, gradient: torch.Tensor, lr: float, wanted: bool) -> torch.Tensor | None:
        return gradient.reshape(self._shape)


_KNOWN: dict[type[nn.Module], Callable[[Any], Layer]] = {
    nn.Linear: _Dense,
    nn.Conv2d: _Convolution,
    **dict.fromkeys(_ACTIVATIONS, _Activation),
    nn.MaxPool2d: _Pool,
    nn.Flatten: _Reshaping,
    nn.Identity: _Reshaping,
}

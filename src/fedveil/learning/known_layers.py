"""Recognises models that are a chain of known layers, and says why another model is not one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedveil.learning.residual import chain_of

#: Modules that hold others and have no forward pass.
_LISTS = (nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Part:
    """A layer of a model, or a module whose own forward pass calls the layers inside it.

    If `refusals` is empty, native code can compute the module as the known layers in `chain`.
    """

    #: The path of the module in the model, such as `body.2`. It is empty for the model itself.
    name: str
    module: nn.Module
    #: The known layers that compute the same in this order. It is empty if there are none.
    chain: Sequence[nn.Module]
    #: The layer's parameters. For a module with layers inside it, those that no layer has.
    parameters: Sequence[nn.Parameter]
    #: The reasons why it is no known layer.
    refusals: Sequence[str]
    #: True if the module is the model, or if only `nn.Sequential`s call it.
    in_chain: bool

    @property
    def kind(self) -> str:
        return type(self.module).__name__


def plain_layers(model: nn.Module, known: Collection[type[nn.Module]]) -> list[nn.Module] | None:
    """Return the layers of a sequential model in order, or None for any other model.

    Also returns None if a layer's class is not in `known`, if a layer has hooks or buffers, if the
    model has no weights, or if a weight is frozen, used twice, not float32 or not on the CPU.
    """
    parts = list(parts_of(model, known))
    if any(part.refusals for part in parts) or not any(part.parameters for part in parts):
        return None
    return [layer for part in parts for layer in part.chain]


def parts_of(
    model: nn.Module, known: Collection[type[nn.Module]], name: str = ""
) -> Iterator[Part]:
    """Yield the layers of `model`, and the modules around them that have their own forward pass.

    A module comes before the layers inside it. A plain `nn.Sequential` is left out. `known` has the
    classes of known layers. `name` is the path of `model` in a larger model.
    """
    owners = dict[int, str]()
    for path, module, in_chain in _modules(model, known, name):
        chain, parameters = _layers(module, known)
        refusals = list(_refusals(module, known, chain, parameters))
        refusals += _shared(path, parameters, owners)
        if refusals or type(module) is not nn.Sequential:
            yield Part(path, module, chain, parameters, refusals, in_chain)


def _modules(
    module: nn.Module, known: Collection[type[nn.Module]], path: str, in_chain: bool = True
) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield `module` and the modules inside it, each with its path and a flag.

    The flag is True if every module around this one is a plain `nn.Sequential`. `path` and
    `in_chain` are the path and the flag of `module` itself. A module with a class in `known` counts
    as one layer, so the modules inside it are left out.
    """
    if in_chain or module._parameters or not isinstance(module, _LISTS):
        yield path, module, in_chain
    if type(module) in known:
        return
    in_chain = in_chain and type(module) is nn.Sequential and _is_untouched(module)
    for name, child in module._modules.items():
        if child is not None:
            yield from _modules(child, known, f"{path}.{name}" if path else name, in_chain)


def _layers(
    module: nn.Module, known: Collection[type[nn.Module]]
) -> tuple[list[nn.Module], list[nn.Parameter]]:
    """Return a chain of known layers that is equivalent to `module`, and the module's parameters.

    The chain is empty if there is none.
    """
    if type(module) not in known:
        return [], list(module.parameters(recurse=False))
    chain = chain_of(module) if isinstance(module, nn.TransformerEncoderLayer) else [module]
    return chain or [], [p for layer in chain or [module] for p in layer.parameters()]


def _refusals(
    module: nn.Module,
    known: Collection[type[nn.Module]],
    chain: Sequence[nn.Module],
    parameters: Sequence[nn.Parameter],
) -> Iterator[str]:
    kind, inside = type(module), list(module.modules())
    if parameters and kind not in known and (kind is nn.Sequential or isinstance(module, _LISTS)):
        yield "it has weights of its own, beside those of its layers"
        return
    if kind not in known and kind is not nn.Sequential:
        does = "cannot follow the forward pass of" if len(inside) > 1 else "does not know"
        yield f"native code {does} {kind.__name__}"
        return
    if kind in known and not chain:
        yield f"it is no standard {kind.__name__}"
    own = inside if kind in known else [module]
    if not all(map(_is_untouched, own)):
        yield "it has a hook or another forward pass"
    if any(True for layer in own for _ in layer.buffers(recurse=False)):
        yield "it has a buffer"
    if not all(p.requires_grad for p in parameters):
        yield "a weight is frozen"
    for other in dict.fromkeys(p.dtype for p in parameters if p.dtype != torch.float32):
        yield f"a weight is {str(other).removeprefix('torch.')}"
    for device in dict.fromkeys(p.device.type for p in parameters if p.device.type != "cpu"):
        yield f"a weight is on {device}"


def _shared(path: str, parameters: Sequence[nn.Parameter], owners: dict[int, str]) -> list[str]:
    """Return reasons to refuse the layer `path` if it shares a weight or has one weight twice.

    `owners` maps the `id` of each weight to the path of the first layer with this weight. New
    weights are added to it.
    """
    first = [owners.setdefault(id(p), path) for p in parameters]
    found = [
        f"it shares a weight with layer {name}" for name in dict.fromkeys(first) if name != path
    ]
    twice = len({id(p) for p in parameters}) < len(parameters)
    return [*found, "it has one weight twice"] if twice else found


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

"""Tensors of a model that each client keeps for itself and never sends."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from fedveil.errors import ModelInvalid

#: Marks a model that has such tensors. Copies of the model have the mark too.
_MARK = "_fedveil_own_layers"


def keep_own(model: nn.Module, patterns: Sequence[str]) -> nn.Module:
    """Mark the tensors whose names match a pattern as each client's own. Returns the model.

    Raises ModelInvalid if a pattern, such as `head.*`, matches no tensor.
    """
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    own = []
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ModelInvalid(
                f"clients.own_layers: no tensor of the model matches {pattern!r}. Its tensors are "
                f"{', '.join(names)}"
            )
        own += [name for name in found if name not in own]
    setattr(model, _MARK, tuple(own))
    return model


def own_names(model: nn.Module) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(model, _MARK, ())
    return names


def whole(model: nn.Module) -> nn.Module:
    """Remove the marks of `keep_own`, so that the whole model is trained. Returns the model."""
    if own_names(model):
        delattr(model, _MARK)
    return model

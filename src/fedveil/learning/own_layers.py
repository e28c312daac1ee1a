"""Tensors of a model that stay with each client, which nobody else ever sees."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from fedveil.errors import ModelInvalid

#: What a model has of which some tensors stay with clients; copies of the model have it too.
_MARK = "_fedveil_own_layers"


def keep_own(model: nn.Module, patterns: Sequence[str]) -> nn.Module:
    """The same model, whose tensors with such names stay with each client from now on."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    own = []
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ModelInvalid(
                f"clients.own_layers: no tensor of the model has a name like {pattern!r}; it has "
                f"{', '.join(names)}"
            )
        own += [name for name in found if name not in own]
    setattr(model, _MARK, tuple(own))
    return model


def own_names(model: nn.Module) -> tuple[str, ...]:
    """The names of those tensors."""
    names: tuple[str, ...] = getattr(model, _MARK, ())
    return names


def whole(model: nn.Module) -> nn.Module:
    """The same model as a client has it: all of it is trained there."""
    if own_names(model):
        delattr(model, _MARK)
    return model

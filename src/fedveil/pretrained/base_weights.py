"""The base weights of a model: tensors that no training changes, and that no report contains.

They are in memory once. Copies of the model share them, and a checkpoint does not hold them.
"""

from __future__ import annotations

from torch import nn

#: Marks a model that has base weights. Copies of the model have the mark too.
_MARK = "_fedveil_base"


def mark_base(model: nn.Module) -> None:
    """Mark all tensors of the model but its trainable parameters as base weights."""
    fixed = [name for name, p in model.named_parameters() if not p.requires_grad]
    buffers = [name for name, _ in model.named_buffers()]
    setattr(model, _MARK, frozenset([*fixed, *buffers]))


def base_names(model: nn.Module) -> frozenset[str]:
    """Return the names of the model's base weights. Empty for a model without any."""
    names: frozenset[str] = getattr(model, _MARK, frozenset())
    return names

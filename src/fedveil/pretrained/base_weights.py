"""The base weights of a pretrained model: training never changes them, and no report contains them.

All copies of a model share the base weights' memory. Checkpoints do not contain base weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import nn

#: Marks a model that has base weights. Copies of the model have the mark too.
_MARK = "_fedveil_base"


def mark_base(model: nn.Module, digest: str = "") -> None:
    """Mark all tensors of `model` except the trainable parameters as base weights.

    `digest` is a digest of the base weights, with which `fingerprint` replaces their values. If it
    is empty, `fingerprint` reads the base weights themselves.
    """
    fixed = [name for name, p in model.named_parameters() if not p.requires_grad]
    buffers = [name for name, _ in model.named_buffers()]
    setattr(model, _MARK, (frozenset([*fixed, *buffers]), digest))


def base_names(model: nn.Module) -> frozenset[str]:
    """Return the names of the model's base weights. The set is empty if it has none."""
    names: frozenset[str] = getattr(model, _MARK, (frozenset(), ""))[0]
    return names


def fingerprint(model: nn.Module) -> str:
    """Return a SHA-256 digest of the names, types, shapes and values of all the model's tensors."""
    names, base = getattr(model, _MARK, (frozenset(), ""))
    named = (*model.named_parameters(), *model.named_buffers())
    return digest_of(named if not base else (n for n in named if n[0] not in names), base)


def digest_of(named: Iterable[tuple[str, torch.Tensor]], begin: str = "") -> str:
    """Return a SHA-256 digest of the text `begin`, followed by named tensors."""
    digest = hashlib.sha256(begin.encode())
    for name, tensor in named:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

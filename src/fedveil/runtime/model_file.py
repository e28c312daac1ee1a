"""A trained model in a safetensors file, which holds tensors and cannot run code."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
from torch import nn

from fedveil.errors import ModelInvalid
from fedveil.learning.layout import tied_names


def model_bytes(model: nn.Module) -> bytes:
    """The file's content: every tensor of the state dict once; tied names are in the metadata."""
    tied = tied_names(model)
    tensors = {
        name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied
    }
    return safetensors.torch.save(tensors, {"tied": json.dumps(tied, sort_keys=True)})


def load_model(model: nn.Module, path: Path) -> None:
    """Give `model` the values of a file that `model_bytes` made for such a model."""
    tied = tied_names(model)
    tensors = safetensors.torch.load(path.read_bytes())
    wanted = {name for name in model.state_dict() if name not in tied}
    if set(tensors) != wanted:
        odd = ", ".join(sorted(set(tensors) ^ wanted))
        raise ModelInvalid(f"{path} is of another model: {odd}")
    for name, kept in tied.items():
        if name in model.state_dict():
            tensors[name] = tensors[kept]
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelInvalid(f"{path} is of another model: {error}") from None

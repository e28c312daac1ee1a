"""A trained model in a safetensors file, which holds tensors and cannot run code."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import nn

from fedveil.errors import ModelInvalid
from fedveil.learning.weight_layout import tied_names


def model_bytes(model: nn.Module) -> bytes:
    """The file's content: every tensor of the state dict once; tied names are in the metadata."""
    tied = tied_names(model)
    tensors = {
        name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied
    }
    return safetensors.torch.save(tensors, {"tied": json.dumps(tied, sort_keys=True)})


def read_model(path: Path, model: nn.Module) -> None:
    """Give `model` the tensors of a file that `model_bytes` made of one like it."""
    try:
        tensors = safetensors.torch.load_file(path)
        tied = tied_names(model)
        held = {name: tensors[tied.get(name, name)] for name in model.state_dict()}
        model.load_state_dict(held)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ModelInvalid(f"{path} does not hold the tensors of this model: {error}") from None

"""A trained model in a safetensors file, which holds tensors and cannot run code."""

from __future__ import annotations

import json

import safetensors.torch
from torch import nn

from fedveil.learning.weight_layout import tied_names


def model_bytes(model: nn.Module) -> bytes:
    """The file's content: every tensor of the state dict once; tied names are in the metadata."""
    tied = tied_names(model)
    tensors = {
        name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied
    }
    return safetensors.torch.save(tensors, {"tied": json.dumps(tied, sort_keys=True)})

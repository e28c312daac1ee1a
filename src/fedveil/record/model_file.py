"""A trained model in a safetensors file, which contains tensors and cannot run code."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import nn

from fedveil.base.files import PARTIAL, put_in_place, write_new
from fedveil.base.untrusted import MALFORMED, MOST_STREAMED_BYTES, check_regular
from fedveil.errors import ModelInvalid, RunFolderError
from fedveil.learning.weight_layout import tied_names
from fedveil.pretrained.base_weights import base_names
from fedveil.record.run_folder import MODEL, RunFolder, explained


def write_model(folder: RunFolder, model: nn.Module) -> None:
    """Write every tensor of the model's state dict, except a pretrained model's base weights.

    A tensor with several names is written once. The file's metadata lists the other names.
    """
    tied, base, target = tied_names(model), base_names(model), folder.path / MODEL
    tensors = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name not in tied and tied.get(name, name) not in base
    }
    partial = target.with_name(target.name + PARTIAL)
    with explained(folder.path):
        try:
            partial.unlink(missing_ok=True)  # otherwise a link would be followed
            write_new(partial, b"", 0o666)
            mode = stat.S_IMODE(partial.stat().st_mode)  # as every other file of the folder has
            metadata = {"tied": json.dumps(tied, sort_keys=True)}
            safetensors.torch.save_file(tensors, partial, metadata)
            partial.chmod(mode)
        except SafetensorError as error:
            raise RunFolderError(f"{target} cannot be written: {error}") from None
        put_in_place(partial, target)


def read_model(path: Path, model: nn.Module) -> None:
    """Load a model file into `model`. Raises `ModelInvalid` if its tensors do not fit."""
    try:
        check_regular(path, MOST_STREAMED_BYTES)
        tensors = safetensors.torch.load_file(path)
        tied, base = tied_names(model), base_names(model)
        names = {name: tied.get(name, name) for name in model.state_dict()}
        held = {name: tensors[first] for name, first in names.items() if first not in base}
        model.load_state_dict(held, strict=not base)
    except OSError as error:
        raise ModelInvalid(f"{path} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, RuntimeError, *MALFORMED) as error:
        raise ModelInvalid(f"{path} does not hold the tensors of this model: {error}") from None

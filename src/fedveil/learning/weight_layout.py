"""The layout of a model's tensors in one flat float32 vector.

Every tensor of a model is averaged, kept (neither averaged nor sent) or refused:

- Trainable parameters and persistent floating-point buffers (BatchNorm statistics) are averaged.
- Tied parameters are in the vector once.
- If only a model's head is trained, everything before it is kept.
- Tensors that stay with each client (`own_layers.keep_own`) are kept.
- Frozen parameters, integer and boolean buffers, and non-persistent buffers are kept. Each client
  starts from the server's value, and its changes are discarded.
- Base weights (`pretrained.base_weights`) are kept. They are not copied, as nothing changes them.
- Other floating types, and sparse, quantised, uninitialised and overlapping tensors are refused.

If the model replaces a tensor by a new one during training, this counts as a change of the old
tensor's values.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Bools, Float32s
from fedveil.errors import ModelInvalid
from fedveil.learning.own_layers import own_names
from fedveil.learning.trained_part import TrainedPart
from fedveil.pretrained.base_weights import base_names

Fate = Literal["parameter", "buffer"]

#: Torch begins its tensors at multiples of this many entries.
_ALIGNED = 16


@dataclass(frozen=True)
class Entry:
    """One averaged tensor of the model, and its slice `start`:`stop` of the vector.

    `name` is the tensor's name in the model. `fate` says if it is a parameter or a buffer.
    """

    name: str
    fate: Fate
    start: int
    stop: int
    tensor: torch.Tensor


@dataclass(frozen=True)
class _Name:
    """One name of `tensor` in the model: its `path`, such as `body.0.weight`.

    A tied tensor has several names. A module stores the tensor under `key` in `tensors`, its
    dictionary of parameters or of buffers.
    """

    path: str
    tensors: dict[str, Any]
    key: str
    tensor: torch.Tensor
    averaged: bool


class Layout:
    """The positions of a model's tensors in a vector. Converts the model to a vector and back."""

    def __init__(self, model: nn.Module) -> None:
        _refuse(model)
        self.entries: list[Entry] = []
        self.kept: dict[str, torch.Tensor] = {}
        self.dimension = 0
        self._own, self._base = own_names(model), base_names(model)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and name not in self._own:
                self._place(name, "parameter", parameter)
            else:
                self.kept[name] = parameter
        persistent = set(model.state_dict(keep_vars=True))
        travelling = {id(buffer) for buffer in TrainedPart.of(model).module.buffers()}
        for name, buffer in model.named_buffers():
            floats = buffer.dtype == torch.float32 and name in persistent
            fixed = name in self._own or name in self._base
            if floats and id(buffer) in travelling and not fixed:
                self._place(name, "buffer", buffer)
            else:
                self.kept[name] = buffer
        if not any(entry.fate == "parameter" for entry in self.entries):
            raise ModelInvalid("the model has no trainable parameter")
        self._kept_values = {
            name: value.detach().clone()
            for name, value in self.kept.items()
            if name not in self._base
        }
        averaged = {id(entry.tensor) for entry in self.entries}
        self._names = [
            _Name(f"{path}.{key}".lstrip("."), tensors, key, tensor, id(tensor) in averaged)
            for path, module in model.named_modules()
            for tensors in (module._parameters, module._buffers)
            if isinstance(tensors, dict)  # a compiled TorchScript module has none
            for key, tensor in tensors.items()
            if tensor is not None
        ]
        self._find_tensors()

    def _find_tensors(self) -> None:
        self._tensors = [entry.tensor.detach() for entry in self.entries]
        # For many small tensors NumPy takes a third of torch's time.
        on_cpu = all(tensor.device.type == "cpu" for tensor in self._tensors)
        self._arrays = [tensor.numpy() for tensor in self._tensors] if on_cpu else None
        self._places = [tensor.data_ptr() for tensor in self._tensors]

    def _follow(self) -> None:
        """Find the tensors anew if they have moved, such as by `move_into` of another layout."""
        if [entry.tensor.data_ptr() for entry in self.entries] != self._places:
            self._find_tensors()

    def move_into(self, vector: torch.Tensor) -> None:
        """Copy the model's values to `vector`, and make the averaged tensors views of it.

        The values are then in memory only once. Does nothing on a GPU, or if a tensor's alignment
        or strides in memory would change, because that could change results.
        """
        pairs = list(zip(self.entries, self.views(vector), strict=True))
        same = all(entry.tensor.stride() == view.stride() for entry, view in pairs)
        if self._arrays is None or not same or any(e.start % _ALIGNED for e in self.entries):
            return
        for entry, view in pairs:
            entry.tensor.data = view.copy_(entry.tensor.detach())
        self._find_tensors()

    def _place(self, name: str, fate: Fate, tensor: torch.Tensor) -> None:
        stop = self.dimension + tensor.numel()
        self.entries.append(Entry(name, fate, self.dimension, stop, tensor))
        self.dimension = stop

    @property
    def trainable(self) -> Bools:
        """A mask over the vector: True for parameters, False for buffers."""
        mask = np.zeros(self.dimension, np.bool_)
        for entry in self.entries:
            mask[entry.start : entry.stop] = entry.fate == "parameter"
        return mask

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return one view into `vector` for each tensor of the layout, with the tensor's shape."""
        return [vector[e.start : e.stop].view(e.tensor.shape) for e in self.entries]

    @torch.no_grad()
    def write(self, vector: torch.Tensor) -> None:
        """Set the averaged tensors of the model to the values in `vector`, and reset all others.

        The others, except base weights, get the values that they had when this layout was made.
        If the model replaced a tensor by another object, the original one is put back.
        """
        for known in self._names:
            known.tensors[known.key] = known.tensor
        self._follow()
        if self._arrays is None:
            torch._foreach_copy_(self._tensors, self.views(vector))
        else:
            values = vector.numpy()
            for entry, array in zip(self.entries, self._arrays, strict=True):
                array[...] = values[entry.start : entry.stop].reshape(array.shape)
        for name, value in self._kept_values.items():
            self.kept[name].copy_(value)

    def change(self, start: Float32s, out: Float32s) -> None:
        """Write the averaged tensors' values minus `start` to `out`.

        `start` and `out` are vectors of this layout. Raises `ModelInvalid` if the model replaced a
        tensor by one of another shape.
        """
        self._take_assigned()
        self._follow()
        if self._arrays is None:
            np.subtract(self.vector(), start, out=out)
            return
        for entry, array in zip(self.entries, self._arrays, strict=True):
            shape, place = array.shape, slice(entry.start, entry.stop)
            np.subtract(array, start[place].reshape(shape), out=out[place].reshape(shape))

    @torch.no_grad()
    def _take_assigned(self) -> None:
        """Undo replacements of averaged tensors by the model, but keep the new values.

        If the model has a new tensor object in place of an averaged tensor, the values of the new
        object are copied to the original one, which is put back. Raises `ModelInvalid` if the new
        tensor has a different shape, or if it is None.
        """
        for name in self._names:
            new = name.tensors.get(name.key)
            if new is name.tensor or not name.averaged:
                continue
            shape = None if new is None else tuple(new.shape)
            if new is None or shape != tuple(name.tensor.shape):
                raise ModelInvalid(
                    f"training replaces {name.path}, of shape {tuple(name.tensor.shape)}, by "
                    f"{'None' if new is None else f'a tensor of shape {shape}'}. Keep its shape, "
                    "or register it with persistent=False so that it is not averaged"
                )
            name.tensor.copy_(new)
            name.tensors[name.key] = name.tensor

    def vector(self) -> Float32s:
        """Return the values of the averaged tensors in a new vector."""
        self._follow()
        return torch.cat([tensor.reshape(-1) for tensor in self._tensors]).cpu().numpy()

    def explain(self) -> list[str]:
        """Return lines for the event log about tensors that are not plain trainable parameters."""
        averaged = [entry.name for entry in self.entries if entry.fate == "buffer"]
        lines = []
        if averaged:
            lines.append(f"buffers averaged with the parameters: {', '.join(averaged)}")
        if self._own:
            lines.append(f"tensors that stay with each client: {', '.join(self._own)}")
        kept = [name for name in self._kept_values if name not in self._own]
        if self._base:
            fixed = sum(self.kept[name].numel() for name in self._base)
            lines.append(
                f"base weights: {fixed:,} numbers, neither trained nor sent; trained: "
                f"{self.dimension:,}"
            )
        if kept:
            lines.append(f"tensors kept at the server's value: {', '.join(kept)}")
        return lines


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return {other name: name in the layout} for all parameters and buffers with several names."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    pairs = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in pairs:
        kept = first.setdefault(id(tensor), name)
        if kept != name:
            tied[name] = kept
    return tied


def _refuse(model: nn.Module) -> None:
    problems = []
    seen: list[tuple[int, int, str]] = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            problems.append(f"{name} is not initialised: run one forward pass in the function")
            continue
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            problems.append(f"{name} is sparse, quantised or without memory")
            continue
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype != torch.float32):
            problems.append(f"{name} has type {tensor.dtype}: convert the model with .float()")
        if tensor.numel():
            begin = tensor.data_ptr()
            size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            if size < tensor.numel():
                problems.append(f"{name} is an expanded view: store it whole with .clone()")
            seen.append((begin, begin + size * tensor.element_size(), name))
    seen.sort()
    for (_, end, one), (begin, _, other) in pairwise(seen):
        if begin < end:
            problems.append(f"{one} and {other} share memory without being one parameter")
    if problems:
        raise ModelInvalid("the model cannot be trained: " + "; ".join(problems))

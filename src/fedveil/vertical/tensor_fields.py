"""Tensors as fields of a message in a file.

Reading loads one tensor at a time, so a file of gigabytes is never in memory as a whole.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedveil.base.array_types import Array
from fedveil.base.message import Message, Value, take, take_array
from fedveil.base.untrusted import MOST_STREAMED_BYTES, opened
from fedveil.errors import MessageInvalid
from fedveil.record.sealed_message import unsealed

_LAYOUT, _TENSOR = "layout", "tensor/"


def read(path: Path) -> tuple[dict[str, Value], dict[str, torch.Tensor]]:
    """Read a message with tensors from a file. Returns its plain fields and its tensors, by name.

    Raises `MessageInvalid` if the digest at the file's end does not match.
    """
    with opened(path, MOST_STREAMED_BYTES) as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def let_go() -> None:
        mapped.madvise(mmap.MADV_DONTNEED)

    found = taken(unsealed(memoryview(mapped)), let_go)
    let_go()
    return found


def fields_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Value]:
    """Return message fields that store the tensors. Does not copy contiguous CPU tensors."""
    here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    layout = {
        name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        for name, tensor in here.items()
    }
    held = {_TENSOR + name: _bytes_of(tensor) for name, tensor in here.items()}
    return {_LAYOUT: json.dumps(layout), **held}


def taken(
    message: Message, let_go: Callable[[], None] = lambda: None
) -> tuple[dict[str, Value], dict[str, torch.Tensor]]:
    """Split a message into its plain fields and the tensors that it stores, both by name.

    `let_go` is called before the bytes of each tensor are copied. It may free the bytes of tensors
    that are already copied. Raises `MessageInvalid` for invalid fields.
    """
    names = [name for name in message if name.startswith(_TENSOR)]
    rest = {name: value for name, value in message.items() if name not in {_LAYOUT, *names}}
    layout = json.loads(take(message, _LAYOUT, str))
    if not isinstance(layout, dict) or {_TENSOR + name for name in layout} != set(names):
        raise MessageInvalid("its layout does not match its tensors")
    described = {name: _described(name, entry) for name, entry in layout.items()}
    raw = {
        name: take_array(message, _TENSOR + name, np.uint8, (math.prod(shape) * dtype.itemsize,))
        for name, (dtype, shape) in described.items()
    }
    tensors = {}
    for name, form in described.items():
        let_go()
        tensors[name] = _made(*form, raw[name])
    return rest, tensors


def _made(dtype: torch.dtype, shape: list[int], raw: Array) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    _bytes_of(tensor)[:] = raw
    return tensor


def _bytes_of(tensor: torch.Tensor) -> Array:
    held: Array = tensor.reshape(-1).view(torch.uint8).numpy()
    return held


def _described(name: str, entry: Any) -> tuple[torch.dtype, list[int]]:
    match entry:
        case [str(kind), [*shape]] if all(type(size) is int and size >= 0 for size in shape):
            dtype = getattr(torch, kind, None)
            if isinstance(dtype, torch.dtype):
                return dtype, shape
    raise MessageInvalid(f"its layout does not describe {name}")

"""NumPy arrays, torch tensors and MindSpore Tensors, told apart without importing either library.

Whoever holds a tensor has imported its library already, so that the library is found among the
loaded modules.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fedveil._arrays import Array
from fedveil.errors import InvalidValue

_LIBRARIES = ("torch", "mindspore")
#: Of these the values can be handed to NumPy as they are.
_SHARED = {"float16", "float32", "float64"}


def values_of(name: str, tensor: Any) -> Array:
    """The real numbers that an array or tensor holds, in C order, shared where that is possible.

    Types that NumPy does not have, such as bfloat16, come as float32, which holds all of theirs.
    Raises InvalidValue where `tensor` is of another kind, or holds anything but real numbers.
    """
    library = _library_of(tensor)
    if isinstance(tensor, np.ndarray):
        values = np.asarray(tensor)
    elif library is None:
        raise InvalidValue(
            f"{name} is a {type(tensor).__name__}, a NumPy array, a torch tensor or a MindSpore "
            f"Tensor is needed"
        )
    else:
        try:
            read = _torch_values if library == "torch" else _mindspore_values
            values = np.asarray(read(tensor))
        except (TypeError, RuntimeError) as error:  # a sparse or meta tensor, for example
            raise InvalidValue(f"{name} cannot be read: {error}") from None
    if values.dtype.kind not in "fiub":
        raise InvalidValue(f"{name} has dtype {values.dtype}, real numbers are needed")
    return np.ascontiguousarray(values).reshape(values.shape)


def same_kind(tensor: Any, values: Array) -> Any:
    """`values` as what `tensor` is: its library, its dtype and its device. May share memory."""
    library = _library_of(tensor)
    if library is None:
        return values.astype(tensor.dtype, copy=False)
    module = sys.modules[library]
    if library == "torch":
        return module.from_numpy(values).to(device=tensor.device, dtype=tensor.dtype)
    made = module.Tensor(values)
    return made if made.dtype == tensor.dtype else made.astype(tensor.dtype)


def _library_of(tensor: Any) -> str | None:
    if isinstance(tensor, np.ndarray):
        return None
    for library in _LIBRARIES:
        kind = getattr(sys.modules.get(library), "Tensor", None)
        if isinstance(kind, type) and isinstance(tensor, kind):
            return library
    return None


def _torch_values(tensor: Any) -> Any:
    plain = tensor.detach()
    floating = plain.is_floating_point() and str(plain.dtype).removeprefix("torch.") not in _SHARED
    return (plain.float() if floating else plain).numpy(force=True)


def _mindspore_values(tensor: Any) -> Any:
    name = str(tensor.dtype).lower()
    if name.startswith(("bfloat", "float")) and name not in _SHARED:
        tensor = tensor.astype(sys.modules["mindspore"].float32)
    return tensor.asnumpy()

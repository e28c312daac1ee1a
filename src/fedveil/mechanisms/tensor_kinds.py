"""Reads NumPy arrays, torch tensors and MindSpore Tensors, without importing their libraries."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fedveil.base.array_types import Array
from fedveil.errors import InvalidValue

_LIBRARIES = ("torch", "mindspore")
#: NumPy can read values of these types directly.
_SHARED = {"float16", "float32", "float64"}


def values_of(name: str, tensor: Any) -> Array:
    """Return the numbers in an array or tensor in C order, without a copy if possible.

    Types that NumPy lacks, such as bfloat16, become float32. Raises `InvalidValue` if `tensor` is
    no array or tensor of real numbers, or cannot be read. `name` is its name in the error message.
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
    """Convert `values` to an array or tensor of the library, dtype and device of `tensor`.

    Avoids a copy if possible.
    """
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

"""A device that is not there: its tensors are on the CPU, but do not mix with those of the CPU.

A test without a GPU finds with it what a GPU would refuse. A tensor is on the device if it was
moved there, made there, or computed from such a tensor. As on a GPU, operations refuse tensors of
two devices, except a copy and a number without dimensions. Unlike on a GPU, an index from the CPU
is refused too. The results are those of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as trees
from torch.utils._python_dispatch import TorchDispatchMode

#: A device that torch knows, but never has.
PRETEND = "lazy"
_MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
_MANY_COPIES = torch.ops.aten._foreach_copy_.default


class MixedDevicesError(RuntimeError):
    """Raised for an operation with tensors of two devices."""


class _There(torch.Tensor):
    """A tensor on the device. `held` has its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> _There:
        made: _There = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, device=torch.device(PRETEND),
        )  # fmt: skip
        made.held = held
        return made

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} is called outside of `pretend_device`")


class _Apart(TorchDispatchMode):
    """Computes on the CPU, and refuses operations with tensors of two devices."""

    #: The number of operations on the device.
    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [t for t in trees.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        there = [t for t in tensors if isinstance(t, _There)]
        here = [t for t in tensors if not isinstance(t, _There) and t.ndim]
        if there and here and func not in _MOVES and func is not _MANY_COPIES:
            raise MixedDevicesError(f"{func} has tensors on {PRETEND} and on the CPU")
        to = kwargs.get("device")
        if to is not None:
            kwargs["device"] = torch.device("cpu")
        held = {id(t.held): t for t in there}
        args, kwargs = trees.tree_map(_held, (args, kwargs))
        found = func(*args, **kwargs)
        target = PRETEND if to is None and there else torch.device(to or "cpu").type
        if func is _MOVES[1]:  # the target of a copy decides
            return tensors[0]
        if target != PRETEND:
            return found
        self.operations += 1
        return trees.tree_map(lambda t: _put(t, held), found)


def _held(part: Any) -> Any:
    return part.held if isinstance(part, _There) else part


def _put(part: Any, known: dict[int, _There]) -> Any:
    """Return a result on the device. What an operation changed in place remains one tensor."""
    if not isinstance(part, torch.Tensor):
        return part
    return known[id(part)] if id(part) in known else _There(part)


@contextmanager
def pretend_device() -> Iterator[_Apart]:
    """A context in which the device `PRETEND` can be used."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes a tensor here, then moves it
    try:
        with _Apart() as mode:
            yield mode
    finally:
        torch._C._set_only_lift_cpu_tensors(before)

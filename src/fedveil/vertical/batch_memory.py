"""The memory that training on a batch needs, computed before any is allocated.

The result is the size of the tensors that autograd saves for the backward pass, plus twice the
largest of these tensors (for gradients), plus 15% for torch's kernels and allocator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedveil.vertical.split import DTYPES, Part, SplitModel
from fedveil.vertical.task import Task

#: The number of gradients in memory at a time: of an operation's output, and of its input.
_GRADIENTS = 2
_OWN = 1.15


def batch_bytes(split: SplitModel, task: Task, parties: Collection[str], rows: int) -> int:
    """Return the bytes of memory that training on `rows` examples needs at all `parties` together.

    The modules of the parties' parts must be on torch's meta device. Returns 0 if the task does not
    state the form of its examples (its attribute `inputs`).
    """
    if not hasattr(task, "inputs"):
        return 0
    kept = _Kept(split)
    values: dict[str, torch.Tensor | None] = {}
    hooks = torch.autograd.graph.saved_tensors_hooks(kept.add, lambda tensor: tensor)
    with torch.device("meta"), hooks, _FusedAttention(kept):
        columns = _columns(task, rows)
        for part in split.parts:
            given = [(columns if is_data else values).get(name) for is_data, name in _read(part)]
            here = part.owner in parties and part.module is not None
            if here and all(tensor is not None for tensor in given):
                assert part.module is not None, "it is here"
                output = part.module(*given)
                kept.add(output)
            else:
                output = torch.empty(rows, *part.output, dtype=DTYPES[part.dtype])
            # A tensor from another party is a separate copy here, with its own gradient.
            crosses = any(c.part == part.name for c in split.crossings)
            values[part.name] = output.detach().requires_grad_() if crosses else output
        labels, outputs = columns.get("labels"), values[split.last.name]
        if split.leader in parties and labels is not None and outputs is not None:
            kept.add(task.loss(outputs, labels))
    return kept.total


def _read(part: Part) -> list[tuple[bool, str]]:
    return [(name.startswith("data."), name.removeprefix("data.")) for name in part.inputs]


def _columns(task: Task, rows: int) -> dict[str, torch.Tensor]:
    known: Mapping[str, tuple[tuple[int, ...], Any]] = getattr(task, "inputs", {})
    return {name: torch.zeros(rows, *shape, dtype=kind) for name, (shape, kind) in known.items()}


class _FusedAttention(TorchFunctionMode):
    """A torch mode that records the memory of fused attention instead of computing the attention.

    Fused attention saves its inputs and its output for the backward pass. The mode adds the inputs
    to `kept`, and a tensor with the output's shape, which it returns as the output. Queries and
    keys may differ in number.
    """

    def __init__(self, kept: _Kept) -> None:
        super().__init__()
        self._kept = kept

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value"), args, strict=False)) | dict(kwargs or {})
        asked, keys, values = (given[name] for name in ("query", "key", "value"))
        # Has the right shape and layout, and needs a gradient if its inputs do.
        mixed = asked[..., :1] + values[..., :1, :]
        for tensor in (asked, keys, values, mixed):
            self._kept.add(tensor)
        return mixed


class _Kept:
    def __init__(self, split: SplitModel) -> None:
        modules = [part.module for part in split.parts if part.module is not None]
        own = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        self._own = {tensor.untyped_storage()._cdata for tensor in own}
        self._kept: dict[int, torch.UntypedStorage] = {}

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._own:
            self._kept[storage._cdata] = storage  # so that no other storage gets its address
        return tensor

    @property
    def total(self) -> int:
        sizes = [storage.nbytes() for storage in self._kept.values()]
        return int(_OWN * (sum(sizes) + _GRADIENTS * max(sizes, default=0)))

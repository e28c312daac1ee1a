"""The part of a model that is trained and sent: all of it, or only its head.

A head is a last linear layer. If only the head is trained, the layers before it are fixed. Their
output, an example's features, is then computed once instead of in every round.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Array, Bools
from fedveil.base.example_arrays import as_whole, blank, is_plain
from fedveil.errors import ModelInvalid
from fedveil.learning.device import whole_float32
from fedveil.learning.forgotten_state import forgotten
from fedveil.learning.token_layers import beyond_is_nan

#: Integers up to this are exact in float32.
_EXACT_IN_FLOAT32 = 1 << 24
#: Marks a model of which only the head is trained. Copies of the model have the mark too.
_MARK = "_fedveil_only_head"


def only_head(model: nn.Module) -> nn.Module:
    """Freeze all layers but the head. Returns the model."""
    features, head = _split(model)
    shared = {id(p) for p in head.parameters()} & {id(p) for p in features.parameters()}
    if shared:
        raise ModelInvalid(
            "training.train = head: the head shares a weight with the layers before it, which "
            "must stay fixed. Give the head a weight of its own"
        )
    features.requires_grad_(False)
    setattr(model, _MARK, True)
    return model


@dataclass(frozen=True)
class TrainedPart:
    """The part of a model that is trained (`module`), and the fixed layers before it (`features`).

    `features` is None if the whole model is trained.
    """

    whole: nn.Module
    module: nn.Module
    features: nn.Module | None = None

    @classmethod
    def of(cls, model: nn.Module) -> TrainedPart:
        """Return the head if `only_head` was applied to the model, otherwise the whole model."""
        if not getattr(model, _MARK, False):
            return cls(model, model)
        features, head = _split(model)
        return cls(model, head, features)

    @torch.no_grad()
    def inputs(self, x: Array, device: str = "cpu") -> Array:
        """Return the input of the trained part for the examples `x`.

        The result is float32, or integers if the model has an embedding that maps them to vectors.
        An example's features are bit-identical in every process, whatever the other examples are.
        """
        x = taken(self.whole, x)
        if self.features is None:
            return x
        fixed = self._fixed(x, device)
        with one_torch_thread():
            out = np.empty((len(x), fixed.width), np.float32)
            for start in range(0, len(x), fixed.at_once):
                out[start : start + fixed.at_once] = fixed.of(x[start : start + fixed.at_once])
        return out

    @torch.no_grad()
    def usable_inputs(self, x: Array, usable: Bools, device: str = "cpu") -> tuple[Array, Bools]:
        """Return the trained part's inputs for the examples `x`, and a mask of usable examples.

        The mask is `usable` without the examples that the model cannot process or whose features
        are not finite. Unusable examples get zeros as inputs. No example affects another, if the
        fixed layers treat the examples of a batch independently. A batch has one example, or as
        many as the layers' attribute `examples_at_once` allows.
        """
        usable = usable.copy()
        if _looks_up(self.whole) and not self._takes_floats(x.shape[1:], device):
            x, right = as_whole(x)
            usable &= right
        else:
            x = x.astype(np.float32, copy=False)
        if self.features is None:
            return blank(x, usable), usable
        fixed = self._fixed(x, device)
        out = np.zeros((len(x), fixed.width), np.float32)
        with one_torch_thread():
            for start in range(0, len(x), fixed.at_once):
                block = slice(start, start + fixed.at_once)
                try:
                    with forgotten(fixed.layers):
                        out[block] = fixed.of(x[block])
                except Exception:  # find out which example fails
                    for i in range(len(x))[block]:
                        try:
                            with forgotten(fixed.layers):
                                out[i] = fixed.of(x[i : i + 1])
                        except Exception:
                            usable[i] = False
        usable &= np.isfinite(out).all(axis=1)
        return blank(out, usable), usable

    def stored_inputs(self, x: Array, device: str = "cpu") -> Array:
        """Return the trained part's inputs for the examples `x`, in the type for storing them.

        If the whole model is trained and has no embedding, integers of at most 16 bits keep their
        type to save memory. `as_floats` converts them before training. Otherwise the result is that
        of `inputs`.
        """
        return x if self._stays_small(x) else self.inputs(x, device)

    def stored_usable_inputs(
        self, x: Array, usable: Bools, device: str = "cpu"
    ) -> tuple[Array, Bools]:
        """Return the trained part's inputs for the examples `x`, and a mask of usable examples.

        If the whole model is trained and has no embedding, integers of at most 16 bits and `usable`
        are returned unchanged. Otherwise the results are those of `usable_inputs`.
        """
        return (x, usable) if self._stays_small(x) else self.usable_inputs(x, usable, device)

    def _stays_small(self, x: Array) -> bool:
        small = is_plain(x) and is_small(x.dtype) and not _looks_up(self.whole)
        return small and self.features is None

    def _fixed(self, x: Array, device: str) -> _FixedLayers:
        """Return the fixed layers, `features`, for examples with the shape of `x`.

        Raises `ModelInvalid` unless the model returns head(features(x)).
        """
        if not is_plain(x):
            raise ModelInvalid("training.train = head needs examples of one input and one shape")
        whole = self._copy(device)
        features, head = _split(whole)
        with one_torch_thread():
            example = _artificial_example(x.shape[1:], x.dtype).to(device)
            _check_scores(head, features(example), whole(example))
        size = min((getattr(m, "examples_at_once", 1) for m in features.children()), default=1)
        return _FixedLayers(features, head.in_features, size, device)

    def _copy(self, device: str) -> nn.Module:
        return copy.deepcopy(self.whole).to(device).eval()

    def _takes_floats(self, shape: tuple[int, ...], device: str) -> bool:
        """Return True if the model accepts floats. Tested with an artificial example."""
        whole = self._copy(device)
        try:
            whole(_artificial_example(shape, np.dtype(np.float32)).to(device))
        except Exception:  # the user's model may raise anything
            return False
        return True

    def explain(self) -> list[str]:
        """Return lines for the event log that describe the trained part."""
        if self.features is None:
            return []
        return ["only the last layer is trained: the output of the others is computed once"]


@dataclass(frozen=True)
class _FixedLayers:
    """The layers before a head with `width` inputs. They process `at_once` examples at a time."""

    layers: nn.Module
    width: int
    at_once: int
    device: str

    def of(self, x: Array) -> Array:
        with beyond_is_nan(self.layers), whole_float32():
            features: Array = self.layers(torch.tensor(x, device=self.device)).cpu().numpy()
        return features


def _artificial_example(shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    """Return an artificial example to test a model. It depends on no client's data."""
    size = math.prod(shape)
    values = np.arange(size) / max(size, 1) if dtype.kind == "f" else np.zeros(size)
    return torch.from_numpy(values.astype(dtype).reshape(1, *shape))


def is_small(dtype: np.dtype[Any]) -> bool:
    """Return True for integers and booleans of at most 16 bits."""
    return dtype.kind in "iub" and dtype.itemsize <= 2


def as_floats(x: Array) -> Array:
    """Convert integers of at most 16 bits to float32 for training. Other arrays are unchanged."""
    return x.astype(np.float32) if is_plain(x) and is_small(x.dtype) else x


def taken(model: nn.Module, x: Array) -> Array:
    """Convert examples for the model: to float32, or integers to int64 if it has an embedding.

    Without an embedding, raises `ModelInvalid` for integers that float32 cannot represent exactly.
    """
    if not is_plain(x) or x.dtype == np.float32:
        return x
    if _looks_up(model):
        return x if x.dtype.kind == "f" else x.astype(np.int64)
    farthest = max(int(x.max(initial=0)), -int(x.min(initial=0))) if x.dtype.kind in "iu" else 0
    if farthest > _EXACT_IN_FLOAT32:
        raise ModelInvalid(
            "the examples have integers beyond 2^24, which float32 cannot represent exactly, and "
            "the model has no nn.Embedding for them"
        )
    return x.astype(np.float32)


def _looks_up(model: nn.Module) -> bool:
    """Return True if the model has an embedding, which takes integers."""
    return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.modules())


def _split(model: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """Return the layers before the head, and the head.

    Raises `ModelInvalid` if the model has no head.
    """
    features: object = getattr(model, "features", None)
    head: object = getattr(model, "head", None)
    if isinstance(model, nn.Sequential) and len(model):
        features, head = model[:-1], model[-1]
    if not isinstance(features, nn.Module) or not isinstance(head, nn.Linear):
        raise ModelInvalid(
            "training.train = head needs a model whose head can be recognised: an nn.Sequential "
            "that ends in an nn.Linear, or a module with the attributes `features`, a module, and "
            "`head`, an nn.Linear, that returns head(features(x))"
        )
    return features, head


def _check_scores(head: nn.Linear, features: torch.Tensor, scores: torch.Tensor) -> None:
    fits = features.ndim == 2 and features.shape[1] == head.in_features
    alike = fits and torch.allclose(head(features), scores, 1e-3, 1e-5, equal_nan=True)
    if not alike:
        raise ModelInvalid(
            "training.train = head: the model's scores differ from head(features(x)). Its forward "
            "pass must do nothing else"
        )


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """A context in which torch uses one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

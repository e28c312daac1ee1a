"""Translates a chain of torch layers into native operations, for examples of one shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from fedveil.compiled.attention import Attention
from fedveil.compiled.convolution import Convolution, Pooled, PooledConvolution
from fedveil.compiled.dense_layer import Dense
from fedveil.compiled.lookup import Lookup
from fedveil.compiled.normalisation import NormOfGroups, layer_norm
from fedveil.compiled.operation import IMAGE, ROW, NotServedError, Operation, Value, need
from fedveil.compiled.pointwise import RISING, Curve, Drop
from fedveil.compiled.residual_add import Added, Copied, Placed
from fedveil.compiled.window import Average, Largest
from fedveil.learning.known_layers import Part
from fedveil.learning.residual import Branch, Join
from fedveil.learning.token_layers import CausalLayer

_OPERATIONS: tuple[type[Operation], ...] = (
    Dense, Convolution, PooledConvolution, Largest, Average, Curve, NormOfGroups, Drop, Lookup,
    Placed, Attention, Copied,
)  # fmt: skip
#: The operation for each kind of layer.
_KINDS: dict[type[nn.Module], Callable[[Any, Value], Operation]] = {
    **{layer: operation for operation in _OPERATIONS for layer in operation.layers},
    nn.LayerNorm: layer_norm,
}
#: The kinds of layers that a chain may contain.
KNOWN = {*_KINDS, nn.Flatten, nn.Identity, nn.TransformerEncoderLayer, CausalLayer}


class _Chain:
    """The operations of consecutive layers. `value` is the memory layout of their output.

    While the chain has no layers, `value` is the layout of its input. `begun` is True if other
    layers of the model come before this chain.
    """

    def __init__(self, value: Value, *, begun: bool = False) -> None:
        self.value, self.operations = value, list[Operation]()
        self._begun, self._aside = begun, list[Value]()

    def add(self, layer: nn.Module) -> None:
        """Append a layer. Raises `NotServedError` if native code does not support it there."""
        value = self.value
        if isinstance(layer, nn.Flatten):
            if (layer.start_dim, layer.end_dim) != (1, -1):
                raise NotServedError("nn.Flatten flattens less than a whole example")
            value.apart, value.form = True, ROW
            return
        if isinstance(layer, Join):
            operation: Operation = Added(layer, self._aside.pop(), value)
        else:
            operation = _KINDS[type(layer)](layer, value)
        begun = self._begun or self.operations
        if isinstance(layer, nn.Embedding) and begun:
            raise NotServedError("nn.Embedding is not the first layer")
        self._aside += [value] if isinstance(layer, Branch) else []
        self.operations.append(operation)
        self.value = operation.y

    def end(self, scores_of: Sequence[str]) -> None:
        """Raise `NotServedError` unless the model's scores have a form that the loss supports.

        The scores are the output of the last layer. `scores_of` has the supported forms, such as
        `ROW`.
        """
        asked = " or ".join(scores_of)
        fits = self.value.form in scores_of
        need(fits, f"the scores have the form {self.value.form}, the loss needs {asked}")


def follow(
    layers: Sequence[nn.Module], shape: Sequence[int], scores_of: Sequence[str] = (ROW,)
) -> tuple[list[Operation], Value, Value]:
    """Translate `layers` into operations, for examples of shape `shape`.

    Returns the operations, the memory layout of the input and that of the scores. `scores_of` has
    the forms that the scores may have: `ROW` if an example has one row of scores, `TOKENS` if each
    of its tokens has a row. Raises `NotServedError` if native code does not support a layer or the
    form of the scores.
    """
    entry = _entry(shape)
    chain = _Chain(entry)
    for layer in _ordered(layers):
        chain.add(layer)
    chain.end(scores_of)
    return chain.operations, entry, chain.value


def refusals(
    parts: Sequence[Part], shapes: Mapping[nn.Module, Sequence[int]], scores_of: Sequence[str]
) -> list[Sequence[str] | None]:
    """Return, for each part of a model, the reasons why native code cannot train it.

    A part is a layer, or a module whose own forward pass calls the layers inside it. Its entry is
    an empty list if native code can train it, and None if the shape of its input is unknown, so
    that nobody can tell. `shapes` maps a module to the shape of its input, for one example. A part
    may be missing there if its input shape follows from the part before it. `scores_of` has the
    forms that the loss supports for the model's scores, such as `ROW`.
    """
    found, chain = list[Sequence[str] | None](), None
    for number, part in enumerate(parts):
        reasons, shape = list(part.refusals), shapes.get(part.module)
        try:
            if chain is None and shape is not None and part.chain:
                chain = _begun(shape, first=number == 0, alone=not part.in_chain)
            if chain is not None:
                for layer in filter(_works, part.chain):
                    chain.add(layer)
                if part.in_chain and number == len(parts) - 1:
                    chain.end(scores_of)
        except NotServedError as error:
            reasons.append(str(error))
        found.append(reasons if reasons or chain else None)
        if reasons or not part.in_chain:
            chain = None
    return found


def _begun(shape: Sequence[int], *, first: bool, alone: bool) -> _Chain:
    """Return an empty chain, whose first layer will get inputs of the shape `shape`.

    `first` is True if this layer is the model's first. `alone` is True if a module's own forward
    pass calls it, so that nobody knows which layers run before it. If both are False, other layers
    run before it, and the chain refuses `nn.Embedding`: native code supports it only as a model's
    first layer. Raises `NotServedError` if native code does not support the shape.
    """
    if not first:
        need(len(shape) in (1, 2, 3), "its input is neither a row nor tokens nor an image")
    value = Value.of_tokens(*shape) if len(shape) == 2 and not first else _entry(shape)
    return _Chain(value, begun=not (first or alone))


def _entry(shape: Sequence[int]) -> Value:
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise NotServedError("an example is neither a row nor an image")
    c, h, w = shape if len(shape) == 3 else (1, 1, *shape)
    return Value((c, h, w), IMAGE if len(shape) == 3 else ROW, apart=True)


def _works(layer: nn.Module) -> bool:
    """Return False if `layer` returns its input unchanged: nn.Identity, or dropout with p = 0."""
    return not (isinstance(layer, nn.Identity) or (isinstance(layer, nn.Dropout) and layer.p == 0))


def _ordered(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Return `layers` without those that change nothing, and with max-poolings merged.

    A max-pooling that follows a convolution is merged with it into one `Pooled` layer. A
    non-decreasing activation (`RISING`) between the two is moved behind the pooling, which gives
    the same result.
    """
    found = list[nn.Module]()
    for layer in filter(_works, layers):
        behind = 2 if found and isinstance(found[-1], tuple(RISING)) else 1
        before = found[-behind] if len(found) >= behind else None
        if isinstance(layer, nn.MaxPool2d) and isinstance(before, nn.Conv2d):
            found[-behind] = Pooled(before, layer)
        else:
            found.append(layer)
    return found

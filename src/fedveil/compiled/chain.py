"""Translates a chain of torch layers into native operations, for examples of one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from fedveil.compiled.attention import Attention
from fedveil.compiled.convolution import Convolution, Pooled, PooledConvolution
from fedveil.compiled.dense_layer import Dense
from fedveil.compiled.lookup import Lookup
from fedveil.compiled.normalisation import NormOfGroups, layer_norm
from fedveil.compiled.operation import IMAGE, ROW, NotServedError, Operation, Value
from fedveil.compiled.pointwise import RISING, Curve, Drop
from fedveil.compiled.residual_add import Added, Copied, Placed
from fedveil.compiled.window import Average, Largest
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


def follow(
    layers: Sequence[nn.Module], shape: Sequence[int], scores_of: str = ROW
) -> tuple[list[Operation], Value, Value]:
    """Translate `layers` into operations, for examples of shape `shape`.

    Returns the operations, the memory layout of the input and that of the scores. `scores_of` is
    `ROW` if an example has one row of scores, `TOKENS` if each of its tokens has a row. Raises
    `NotServedError` if native code does not support a layer or the form of the scores.
    """
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise NotServedError("an example is neither a row nor an image")
    c, h, w = shape if len(shape) == 3 else (1, 1, *shape)
    entry = value = Value((c, h, w), IMAGE if len(shape) == 3 else ROW, apart=True)
    operations, aside = list[Operation](), list[Value]()
    for layer in _ordered(layers):
        if isinstance(layer, nn.Flatten):
            if (layer.start_dim, layer.end_dim) != (1, -1):
                raise NotServedError("nn.Flatten flattens less than a whole example")
            value.apart, value.form = True, ROW
            continue
        if isinstance(layer, Join):
            operation: Operation = Added(layer, aside.pop(), value)
        else:
            operation = _KINDS[type(layer)](layer, value)
        if isinstance(layer, nn.Embedding) and operations:
            raise NotServedError("nn.Embedding is not the first layer")
        aside += [value] if isinstance(layer, Branch) else []
        operations.append(operation)
        value = operation.y
    if value.form != scores_of:
        raise NotServedError(f"the scores have the form {value.form}, the loss needs {scores_of}")
    return operations, entry, value


def _ordered(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Return `layers` without those that do nothing, and with each max-pooling moved into `Pooled`.

    A `Pooled` has a convolution and the max-pooling after it. An activation between them is then
    applied after the pooling, which gives the same result if the activation is monotone.
    """
    left = [
        layer
        for layer in layers
        if not (isinstance(layer, nn.Identity) or (isinstance(layer, nn.Dropout) and layer.p == 0))
    ]
    found = list[nn.Module]()
    for layer in left:
        behind = 2 if found and isinstance(found[-1], tuple(RISING)) else 1
        before = found[-behind] if len(found) >= behind else None
        if isinstance(layer, nn.MaxPool2d) and isinstance(before, nn.Conv2d):
            found[-behind] = Pooled(before, layer)
        else:
            found.append(layer)
    return found

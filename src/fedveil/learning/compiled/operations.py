"""What follows what: the operations that a chain of layers makes of examples of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.known_layers import ordered, pair
from fedveil.learning.compiled.residual import Branch, Heads, Join
from fedveil.learning.token_layers import Positions

_Shape = tuple[int, int, int]
#: What an example is: a row of numbers, an image, or a row for each of its tokens.
ROW, _IMAGE, TOKENS = "row", "image", "tokens"
#: Tokens of which each may look at each: that takes memory for every pair.
_LONGEST = 512
#: Every whole number up to this is a float32.
_EXACT = 1 << 24


class NotServedError(Exception):
    """The layers, or their order, are not what is compiled; torch knows what is wrong, if it is."""


@dataclass(eq=False)
class Value:
    """What lies between two operations, for each example of a batch."""

    shape: _Shape
    #: Channels after one another, as torch has them, and not side by side.
    apart: bool = False
    #: A row for each token; examples follow each other without a gap.
    rows: bool = False
    #: Rows and columns of zeros around it, which a convolution reads.
    border: tuple[int, int] = (0, 0)
    place: int = 0
    gradient: int = -1

    @property
    def steps(self) -> _Shape:
        """From a row, a column, a channel to the next."""
        c, h, w = self.shape
        return (w, 1, h * w) if self.apart else ((w + 2 * self.border[1]) * c, c, 1)

    @property
    def size(self) -> int:
        """Entries of an example."""
        if self.rows:
            return up(prod(self.shape))
        return filled(
            prod(self.shape) if self.apart else (self.shape[1] + 2 * self.border[0]) * self.steps[0]
        )

    @property
    def inside(self) -> int:
        """Where its first row begins."""
        return self.border[0] * self.steps[0] + self.border[1] * self.steps[1]


@dataclass
class Op:
    """An operation: its kind, its layer, the pooling that it has taken in, and its values."""

    kind: int
    layer: nn.Module
    pool: nn.Module | None
    x: Value
    y: Value
    weight: int = 0
    bias: int = 0

    @property
    def row(self) -> int:
        """How long a row of its weight is, filled up."""
        if isinstance(self.layer, nn.Conv2d):
            return up(self.layer.kernel_size[1] * self.layer.in_channels)
        if isinstance(self.layer, nn.Linear | nn.Embedding):
            return filled(self.layer.weight.shape[0 if self.across else 1])
        if isinstance(self.layer, Heads):
            return filled(self.x.shape[0])
        return filled(prod(self.x.shape))

    @property
    def across(self) -> bool:
        """Whether a weight lies as inputs by outputs: longer rows are met faster."""
        if not isinstance(self.layer, nn.Linear) or not self.y.rows:
            return False
        inputs, outputs = self.layer.in_features, self.layer.out_features
        return outputs > inputs and outputs == up(outputs)

    def weights(self) -> list[tuple[nn.Parameter, int, Sequence[int]]]:
        """Each weight, its entries here, and for four dimensions the size and the steps there and
        here."""
        weight: Any = getattr(self.layer, "weight", None)
        bias: Any = getattr(self.layer, "bias", None)
        row, found = self.row, list[tuple[nn.Parameter, int, Sequence[int]]]()
        if isinstance(self.layer, nn.Conv2d):
            o, c, r, s = weight.shape
            steps = (o, r, s, c, c * r * s, s, 1, r * s, r * row, row, c, 1)
            found.append((weight, o * r * row, steps))
        elif isinstance(self.layer, nn.Linear | nn.Embedding):
            o, i = weight.shape
            lies = (i, o, 0, 0, 1, i) if self.across else (o, i, 0, 0, i, 1)
            found.append((weight, lies[0] * row, (1, 1, *lies, 0, 0, row, 1)))
        elif weight is not None:
            found.append((weight, weight.numel(), _vector(weight)))
        return [*found, *([(bias, bias.numel(), _vector(bias))] if bias is not None else [])]


def _vector(weight: nn.Parameter) -> Sequence[int]:
    return (1, 1, 1, weight.numel(), 0, 0, 0, 1, 0, 0, 0, 1)


def follow(
    layers: Sequence[nn.Module], shape: Sequence[int], scores_of: str = ROW
) -> tuple[list[Op], Value, Value]:
    """The operations, what comes in and what comes out; raises `NotServedError`.

    `scores_of`: whether scores are a row, or one for each of the tokens.
    """
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise NotServedError("an example is a row or an image")
    form = ROW if len(shape) == 1 else _IMAGE
    sides = (1, 1, shape[0]) if form == ROW else (shape[0], shape[1], shape[2])
    entry = value = Value(sides, apart=True)
    left, ops, aside = ordered(layers), list[Op](), list[Value]()
    while left:
        layer = left.pop(0)
        if isinstance(layer, nn.Flatten):
            if (layer.start_dim, layer.end_dim) != (1, -1):
                raise NotServedError("flattening a part")
            value.apart, value.rows, form = True, False, ROW
            continue
        takes = isinstance(layer, nn.Conv2d) and bool(left) and isinstance(left[0], nn.MaxPool2d)
        pool = left.pop(0) if takes else None
        if isinstance(layer, nn.Embedding):
            _need(not ops and form == ROW)
            form = TOKENS
        if isinstance(layer, Join):
            other = aside.pop()
            _need(other.shape == value.shape)
            ops.append(Op(f.JOIN, layer, None, other, value))
            continue
        kind, y = _after(layer, pool, value, form)
        ops.append(Op(kind, layer, pool, value, y))
        aside += [value] if kind == f.BRANCH else []
        value = y
    if form != scores_of:
        raise NotServedError("the scores are not those of the loss")
    return ops, entry, value


def _after(layer: nn.Module, pool: nn.Module | None, x: Value, form: str) -> tuple[int, Value]:
    match layer:
        case nn.Embedding():
            plain = layer.padding_idx is None and layer.max_norm is None
            _need(plain and not layer.scale_grad_by_freq and not layer.sparse)
            _need(layer.num_embeddings <= _EXACT)
            return f.LOOKUP, _rows(x.shape[2], layer.embedding_dim)
        case Positions():
            _need(form == TOKENS and layer.weight.shape[1] == x.shape[2])
            _need(x.shape[0] <= layer.weight.shape[0])
            return f.PLACE, x
        case Branch():
            _need(form == TOKENS)
            return f.BRANCH, _rows(x.shape[0], x.shape[2])
        case Heads():
            width = x.shape[2] // 3
            _need(width // layer.heads == up(width // layer.heads))
            _need(x.shape[0] <= _LONGEST)
            return f.ATTENTION, _rows(x.shape[0], width)
        case nn.Linear():
            inputs, outputs = layer.in_features, layer.out_features
            if form == TOKENS:  # which lie without a gap, so that their rows must fill vectors
                _need(x.shape[2] == inputs == up(inputs))
                return f.DENSE, _rows(x.shape[0], outputs)
            _need(form == ROW and prod(x.shape) == inputs)
            return f.DENSE, Value((1, 1, outputs), apart=True)
        case nn.Conv2d():
            _need(form == _IMAGE and layer.in_channels == x.shape[0] and layer.groups == 1)
            _need(layer.dilation == (1, 1) and layer.padding_mode == "zeros")
            padding = layer.padding
            if isinstance(padding, str):
                raise NotServedError("a border that is only named")
            x.apart, x.border = False, pair(padding)
            kernel, stride = pair(layer.kernel_size), pair(layer.stride)
            shape = (layer.out_channels, *windows(x.shape, kernel, stride, x.border))
            return f.CONVOLUTION, Value(shape if pool is None else _pooled(shape, pool))
        case nn.MaxPool2d() | nn.AvgPool2d():
            _need(form == _IMAGE)
            x.apart = False
            kind = f.LARGEST if isinstance(layer, nn.MaxPool2d) else f.AVERAGE
            return kind, Value(_pooled(x.shape, layer))
        case nn.GroupNorm():
            _need(form == _IMAGE and layer.num_channels == x.shape[0])
            return f.NORM, x
        case nn.LayerNorm():
            last = form != _IMAGE
            _need(tuple(layer.normalized_shape) == (x.shape[2:] if last else x.shape))
            _need(form != ROW or x.shape[:2] == (1, 1))
            _need((layer.weight is None) == (layer.bias is None))
            return f.NORM_OF_ROWS if x.rows else f.NORM, x
        case nn.Dropout():
            return f.DROPOUT, x
    return f.POINTWISE, x


def _rows(tokens: int, width: int) -> Value:
    return Value((tokens, 1, width), apart=True, rows=True)


def _pooled(shape: _Shape, pool: nn.Module) -> _Shape:
    assert isinstance(pool, nn.MaxPool2d | nn.AvgPool2d)
    kernel, stride, border = pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)
    _need(not pool.ceil_mode and 2 * border[0] <= kernel[0] and 2 * border[1] <= kernel[1])
    if isinstance(pool, nn.MaxPool2d):
        _need(pair(pool.dilation) == (1, 1) and not pool.return_indices)
    else:
        _need(pool.count_include_pad and pool.divisor_override is None)
    return (shape[0], *windows(shape, kernel, stride, border))


def windows(
    shape: _Shape, kernel: Sequence[int], stride: Sequence[int], border: Sequence[int]
) -> tuple[int, int]:
    """How many rows and columns of windows there are."""
    h, w = (
        (side + 2 * b - k) // s + 1
        for side, k, s, b in zip(shape[1:], kernel, stride, border, strict=True)
    )
    _need(min(h, w) > 0)
    return h, w


def _need(fits: bool) -> None:
    if not fits:
        raise NotServedError("a layer of another kind, or that does not fit")


def up(count: int) -> int:
    """Filled up to whole vectors."""
    return -(-count // 8) * 8


def filled(length: int) -> int:
    """The same for rows that lie below each other: those of whole 4 kB evict each other."""
    row = up(length)
    return row + 16 if row % 1024 == 0 else row

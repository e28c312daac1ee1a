"""Operations (native versions of layers), and the values that are passed between them.

Each kind of operation is a subclass, in one file with its native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from torch import nn

    from fedveil.compiled.native import Native

Shape = tuple[int, int, int]
#: An operation's values in the operation table, by column.
Row = dict[int, int]
#: A weight, its number of entries in packed memory, and for four dimensions the size, the stride in
#: the model's vector and the stride in packed memory.
Laid: TypeAlias = "tuple[nn.Parameter, int, Sequence[int]]"
#: The forms of an example: a row of numbers, an image, or a row for each token.
ROW, IMAGE, TOKENS = "row", "image", "tokens"
#: Floats per cache line. Unaligned vectors would be read twice.
LINE = 16


class NotServedError(Exception):
    """Raised if native code does not support a model, with the reason. torch then trains it."""


def need(fits: bool, otherwise: str) -> None:
    if not fits:
        raise NotServedError(otherwise)


def up(count: int) -> int:
    """Round `count` up to a multiple of 8, the number of floats in a vector."""
    return -(-count // 8) * 8


def filled(length: int) -> int:
    """Return the padded length, in floats, of a row of `length` entries.

    It is a multiple of 8 but not of 1,024, so that rows do not evict each other from the cache.
    """
    row = up(length)
    return row + 16 if row % 1024 == 0 else row


@dataclass(eq=False)
class Value:
    """The memory layout of a layer's input or output, as positions and strides in float memory."""

    shape: Shape
    #: ROW, IMAGE or TOKENS. Token rows and examples of tokens are contiguous.
    form: str
    #: True if channels are stored one after another, as in torch. False: channels last.
    apart: bool = False
    #: Rows and columns of zero padding, which a convolution reads.
    border: tuple[int, int] = (0, 0)
    place: int = 0
    gradient: int = -1

    @classmethod
    def of_tokens(cls, tokens: int, width: int) -> Value:
        return cls((tokens, 1, width), TOKENS, apart=True)

    @property
    def steps(self) -> Shape:
        """Return the strides of a row, a column and a channel, in entries."""
        c, h, w = self.shape
        return (w, 1, h * w) if self.apart else ((w + 2 * self.border[1]) * c, c, 1)

    @property
    def size(self) -> int:
        if self.form == TOKENS:
            return up(prod(self.shape))
        return filled(
            prod(self.shape) if self.apart else (self.shape[1] + 2 * self.border[0]) * self.steps[0]
        )

    @property
    def inside(self) -> int:
        """Return the offset, within an example, of the first entry that is not padding."""
        return self.border[0] * self.steps[0] + self.border[1] * self.steps[1]


class Memory:
    """Reserves areas in the float memory and in the integer memory of a compiled model."""

    def __init__(self, used: int) -> None:
        self.float_end, self.int_end = used, 0

    def floats(self, count: int) -> int:
        begin = -(-self.float_end // LINE) * LINE
        self.float_end = begin + up(count) + LINE
        return begin

    def ints(self, count: int) -> int:
        begin, self.int_end = self.int_end, self.int_end + up(count) + 16
        return begin


class Operation:
    """A layer in native code, for examples of one shape. Creating it can raise `NotServedError`."""

    #: The native code, and the products that it calls.
    forward: ClassVar[Native]
    backward: ClassVar[Native]
    #: Applies the deferred steps.
    steps: ClassVar[Native]
    products: ClassVar[Sequence[int]] = ()
    #: Positions of the weight and the bias in the float memory.
    weight = bias = 0
    #: An epsilon or a probability.
    setting = 0.0
    #: Random numbers that an example needs.
    draws = 0
    #: The kinds of layers that the operation supports.
    layers: ClassVar[tuple[type[nn.Module], ...]] = ()

    def __init__(self, layer: Any, x: Value) -> None:
        self.layer, self.x = layer, x
        self.y = self.written()

    def written(self) -> Value:
        """Return the output's memory layout. It equals the input's if the layer works in place."""
        return self.x

    @property
    def biased(self) -> bool:
        return getattr(self.layer, "bias", None) is not None

    @property
    def row(self) -> int:
        """Return the padded length of a row of the weight, or 0 if the weight has only one row."""
        return 0

    def weights(self) -> list[Laid]:
        """Return the layout of the layer's weight and bias in the packed weights."""
        weight = getattr(self.layer, "weight", None)
        found = [] if weight is None else [self.laid(weight)]
        return [*found, _vector(self.layer.bias)] if self.biased else found

    def laid(self, weight: nn.Parameter) -> Laid:
        return _vector(weight)

    def numbers(self, memory: Memory, batch: int, changed: bool) -> Row:
        """Return the values in the operation table's columns that only this kind of operation has.

        Reserves scratch memory in `memory`, for batches of up to `batch` examples. `changed` is
        True if a later operation overwrites the output.
        """
        return {}

    def held(self, memory: Memory, batch: int) -> Row:
        """Reserve memory for deferred SGD steps, of batches of up to `batch` examples.

        Returns the values in the operation table's columns that describe this memory. The result is
        empty if the operation cannot defer steps.
        """
        return {}


def _vector(weight: nn.Parameter) -> Laid:
    return weight, weight.numel(), (1, 1, 1, weight.numel(), 0, 0, 0, 1, 0, 0, 0, 1)


def matrix(weight: nn.Parameter, row: int, *, across: bool = False) -> Laid:
    """Return the layout of `weight`, transposed if `across`, with rows padded to `row` entries."""
    o, i = weight.shape
    lies = (i, o, 0, 0, 1, i) if across else (o, i, 0, 0, i, 1)
    return weight, lies[0] * row, (1, 1, *lies, 0, 0, row, 1)

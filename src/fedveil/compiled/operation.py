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
FORMS = ROW, IMAGE, TOKENS = "row", "image", "tokens"
#: Floats per cache line. Unaligned vectors would be read twice.
LINE = 16


class NotServedError(Exception):
    """Raised with the reason if native code does not support a model. torch then trains it."""


def need(fits: bool, otherwise: str) -> None:
    if not fits:
        raise NotServedError(otherwise)


def up(count: int) -> int:
    """Round `count` up to a multiple of 8, the number of floats in a vector."""
    return -(-count // 8) * 8


def filled(length: int) -> int:
    """Return the length, in floats, that a row of `length` entries has in memory, with padding.

    The result is a multiple of 8 but not of 1,024. Rows whose length is a multiple of 1,024 would
    evict each other from the cache.
    """
    row = up(length)
    return row + 16 if row % 1024 == 0 else row


@dataclass(eq=False)
class Value:
    """The layout of a layer's input or output in the float memory, for a batch of examples.

    `shape` is the shape of an example: channels, rows and columns. `place` is the position of the
    batch's first entry, and `gradient` that of the entry's gradient. `gradient` is -1 if no
    gradients are stored.
    """

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
        """Return the strides of a row, a column and a channel, in floats."""
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
        """Return the number of padding zeros before an example's first entry."""
        return self.border[0] * self.steps[0] + self.border[1] * self.steps[1]


class Memory:
    """Reserves areas in the float memory and the integer memory of a compiled model.

    `used` is the number of floats that are already reserved. The methods return an area's first
    position.
    """

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
    """A layer in native code, for examples of one shape.

    Creating it raises `NotServedError` if native code does not support the layer or its input.
    """

    #: The native code, and the products that it calls.
    forward: ClassVar[Native]
    backward: ClassVar[Native]
    #: Applies the deferred steps.
    steps: ClassVar[Native]
    products: ClassVar[Sequence[int]] = ()
    #: Positions of the weight and the bias in the float memory.
    weight = bias = 0
    #: The eps of a normalisation, or the probability of a dropout.
    setting = 0.0
    #: Random numbers that an example needs.
    draws = 0
    #: The kinds of layers that the operation supports.
    layers: ClassVar[tuple[type[nn.Module], ...]] = ()

    def __init__(self, layer: Any, x: Value) -> None:
        self.layer, self.x = layer, x
        self.y = self.written()

    def written(self) -> Value:
        """Return the output's memory layout, which is the input's if the layer works in place."""
        return self.x

    @property
    def biased(self) -> bool:
        return getattr(self.layer, "bias", None) is not None

    @property
    def row(self) -> int:
        """Return the distance in floats between the rows of the weight in memory.

        The distance is the length of a row with its padding. It is 0 if the weight is stored as one
        vector, or if there is no weight.
        """
        return 0

    def weights(self) -> list[Laid]:
        """Return the memory layout of the layer's weight and of its bias, if it has them."""
        weight = getattr(self.layer, "weight", None)
        found = [] if weight is None else [self.laid(weight)]
        return [*found, _vector(self.layer.bias)] if self.biased else found

    def laid(self, weight: nn.Parameter) -> Laid:
        return _vector(weight)

    def working_memory(self, memory: Memory, batch: int, changed: bool) -> Row:
        """Reserve working memory in `memory`, for intermediate results of up to `batch` examples.

        Returns the values of the table columns that only this kind of operation has, such as the
        positions of this memory. `changed` is True if a later operation works in place and so
        overwrites the layer's input.
        """
        return {}

    def deferred_memory(self, memory: Memory, batch: int) -> Row:
        """Reserve memory for SGD steps that are stored, and added to the weight only at the end.

        Such steps are called deferred (see `deferred_steps`). A batch has up to `batch` examples.
        Returns the values of the table columns that describe the memory, or {} if the operation
        cannot defer steps.
        """
        return {}


def _vector(weight: nn.Parameter) -> Laid:
    return weight, weight.numel(), (1, 1, 1, weight.numel(), 0, 0, 0, 1, 0, 0, 0, 1)


def matrix(weight: nn.Parameter, row: int, *, across: bool = False) -> Laid:
    """Return the layout of the matrix `weight` in the float memory, with rows of `row` floats.

    Each row is padded to this length. If `across` is True, the transposed matrix is stored.
    """
    o, i = weight.shape
    lies = (i, o, 0, 0, 1, i) if across else (o, i, 0, 0, i, 1)
    return weight, lies[0] * row, (1, 1, *lies, 0, 0, row, 1)

"""What an operation is, and the values between operations.

A kind of operation is a class beside its code: which layers it serves, what it makes of examples of
one shape, how its weights lie, and its row of numbers (`fields`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

if TYPE_CHECKING:
    from fedveil.compiled.native import Native

Shape = tuple[int, int, int]
Row = dict[int, int]
#: A weight, its entries here, and for four dimensions the size and the steps there and here.
Laid = tuple[nn.Parameter, int, Sequence[int]]
#: What an example is: a row of numbers, an image, or a row for each of its tokens.
ROW, IMAGE, TOKENS = "row", "image", "tokens"
#: Floats of a line of the caches: a vector that lies in two is read twice.
LINE = 16


class NotServedError(Exception):
    """The layers, or their order, are not what is compiled; torch knows what is wrong, if it is."""


def need(fits: bool) -> None:
    """Leave to torch what does not fit."""
    if not fits:
        raise NotServedError("a layer of another kind, or that does not fit")


def up(count: int) -> int:
    """Filled up to whole vectors."""
    return -(-count // 8) * 8


def filled(length: int) -> int:
    """The same for rows that lie below each other: those of whole 4 kB evict each other."""
    row = up(length)
    return row + 16 if row % 1024 == 0 else row


@dataclass(eq=False)
class Value:
    """What lies between two operations, for each example of a batch."""

    shape: Shape
    #: Rows for tokens follow each other, those of examples too, without a gap.
    form: str
    #: Channels after one another, as torch has them, and not side by side.
    apart: bool = False
    #: Rows and columns of zeros around it, which a convolution reads.
    border: tuple[int, int] = (0, 0)
    place: int = 0
    gradient: int = -1

    @classmethod
    def of_tokens(cls, tokens: int, width: int) -> Value:
        return cls((tokens, 1, width), TOKENS, apart=True)

    @property
    def steps(self) -> Shape:
        """From a row, a column, a channel to the next."""
        c, h, w = self.shape
        return (w, 1, h * w) if self.apart else ((w + 2 * self.border[1]) * c, c, 1)

    @property
    def size(self) -> int:
        """Entries of an example."""
        if self.form == TOKENS:
            return up(prod(self.shape))
        return filled(
            prod(self.shape) if self.apart else (self.shape[1] + 2 * self.border[0]) * self.steps[0]
        )

    @property
    def inside(self) -> int:
        """Where its first row begins."""
        return self.border[0] * self.steps[0] + self.border[1] * self.steps[1]


class Memory:
    """What of the two memories is given away."""

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
    """What a layer does to examples of one shape; one that it does not serve is left to torch."""

    #: Its code, and the products that are called there.
    forward: ClassVar[Native]
    backward: ClassVar[Native]
    #: That which takes steps that were held.
    steps: ClassVar[Native]
    products: ClassVar[Sequence[int]] = ()
    #: Where its weight and its bias begin in the float memory.
    weight = bias = 0
    #: An epsilon or a probability.
    setting = 0.0
    #: How many random numbers an example takes.
    draws = 0

    def __init__(self, layer: Any, x: Value) -> None:
        self.layer, self.x = layer, x
        self.y = self.written()

    def written(self) -> Value:
        """What it writes: a value of its own, or x where it works in place."""
        return self.x

    @property
    def biased(self) -> bool:
        return getattr(self.layer, "bias", None) is not None

    @property
    def row(self) -> int:
        """How long a row of its weight is, filled up, where it has several."""
        return 0

    def weights(self) -> list[Laid]:
        """Those of the layer, as they lie here."""
        weight = getattr(self.layer, "weight", None)
        found = [] if weight is None else [self.laid(weight)]
        return [*found, _vector(self.layer.bias)] if self.biased else found

    def laid(self, weight: nn.Parameter) -> Laid:
        return _vector(weight)

    def numbers(self, memory: Memory, batch: int, changed: bool) -> Row:
        """What its row says for batches of so many, beyond what all say.

        `changed`: a later operation works in place on the same value.
        """
        return {}

    def held(self, memory: Memory, batch: int) -> Row:
        """What its row says where its steps may be held (`held_steps`)."""
        return {}


def _vector(weight: nn.Parameter) -> Laid:
    return weight, weight.numel(), (1, 1, 1, weight.numel(), 0, 0, 0, 1, 0, 0, 0, 1)


def matrix(weight: nn.Parameter, row: int, *, across: bool = False) -> Laid:
    """Rows below each other; `across`: columns."""
    o, i = weight.shape
    lies = (i, o, 0, 0, 1, i) if across else (o, i, 0, 0, i, 1)
    return weight, lies[0] * row, (1, 1, *lies, 0, 0, row, 1)

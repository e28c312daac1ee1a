"""Trains clients in native code, if all layers of the model are supported.

Threads train clients in parallel from the same weights. A client's result depends neither on other
clients nor on the number of threads.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedveil.base.array_types import Float32s, Int32s
from fedveil.base.example_arrays import IGNORED
from fedveil.base.kernels import HAVE_NUMBA
from fedveil.compiled.operation import ROW, TOKENS, NotServedError
from fedveil.entropy import Seeded
from fedveil.learning.known_layers import plain_layers
from fedveil.learning.losses import WEIGHTED
from fedveil.learning.trainer import ClientData, LoopTrainer, Trained, Trainer, TrainingPlan
from fedveil.learning.weight_layout import Layout

if TYPE_CHECKING:
    from fedveil.compiled.program import Model, Program

#: Bytes of a cache line and of a huge page.
_LINE, _PAGE = 64, 1 << 21
_NOTHING = np.empty(0, np.int64)
_OPTIMISERS = ("sgd", "adam", "adamw", "adagrad")
#: The losses with one class per example, and those with one number per score.
_OF_CLASSES, _OF_NUMBERS = ("cross_entropy", WEIGHTED), ("mean_square", "binary_cross_entropy")
#: The losses with one target token per token.
_OF_TOKENS = ("next_token",)
#: The largest sum of squares of a client's inputs that native code trains on.
_MOST_SQUARES = 1e30
#: The most random numbers for a client's dropout, 1 GiB. They are drawn before its training.
_MOST_DRAWS = 1 << 28
#: Held while torch trains, because all threads share the random generator of its dropout.
_TORCH = threading.Lock()


class Start:
    """The weights at the start of a round, in the memory layout of native code, for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._weights = np.empty(0, np.float32)
        self._packed: tuple[Model, Float32s] | None = None

    def begin(self, weights: Float32s) -> None:
        """Set the weights of a new round, and discard the copy of the old ones in native layout."""
        self._weights, self._packed = weights, None

    def packed(self, model: Model, kind: npt.DTypeLike) -> Float32s:
        """Return the weights in the memory layout of `model`, as floats of type `kind`.

        They are copied to this layout once, and then cached until the round ends.
        """
        from fedveil.compiled.steps import pack

        with self._lock:
            if self._packed is None or self._packed[0] is not model:
                packed = _on_a_line(model.size, kind)
                pack(model.places, self._weights, packed)
                self._packed = model, packed
            return self._packed[1]


@dataclass(frozen=True)
class Room:
    """A compiled model with its own working memory, for batches of up to `batch` examples.

    `m` is the memory for floats, and `w` the memory for integers.
    """

    model: Model
    batch: int
    program: Program
    m: Float32s
    w: Int32s
    #: The weight of each class.
    weights: Float32s


class CompiledTrainer:
    """Trains clients in native code. A client that native code cannot train is trained by torch."""

    chunk = least = 1
    native, own_step = True, False
    #: The losses of the plans that it can train, with the forms that their scores may have.
    scores_of: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys((*_OF_CLASSES, *_OF_NUMBERS), (ROW,)),
        **dict.fromkeys(_OF_TOKENS, (TOKENS,)),
    }
    #: The float type of all computations. The tests also use float64.
    kind: type[np.floating[Any]] = np.float32

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        layers: Sequence[nn.Module],
        loop: Trainer | None = None,
    ) -> None:
        """Create a trainer for `model` and its `layers`.

        `loop` trains a client that native code cannot train. By default it is a `LoopTrainer`.
        """
        self._plan, self._layers, self._whole = plan, layers, model
        layout = Layout(model)
        self._flat = {id(entry.tensor): entry.start for entry in layout.entries}
        self._row = _on_a_line(layout.dimension, self.kind)[None]
        self._loop = loop or LoopTrainer(model, plan)
        self._begun = Start()
        #: The model for examples of each shape, or None if native code does not support the shape.
        self._models: dict[tuple[int, ...], Model | None] = {}
        self._room: Room | None = None
        #: The weights that `_room` holds now.
        self._held: Float32s | None = None
        norm = -1.0 if plan.gradient_norm is None else plan.gradient_norm
        numbers = (plan.lr, plan.momentum, plan.weight_decay, plan.proximal, norm)
        self._numbers = np.array(numbers)

    @classmethod
    def of(
        cls, model: nn.Module, plan: TrainingPlan, shape: Sequence[int] = (), *more: Any
    ) -> Self | None:
        """Return a trainer for examples of `shape`, or None if native code cannot train `model`.

        Without a shape, only `plan` and the kinds of layers are checked. `more` are further
        arguments for the constructor of the class, after `layers`.
        """
        if cls.plan_refusals(plan):
            return None
        from fedveil.compiled.chain import KNOWN

        layers = plain_layers(model, KNOWN)
        if layers is None:
            return None
        trainer = cls(model, plan, layers, *more)
        return None if shape and not trainer.serves(shape) else trainer

    @classmethod
    def plan_refusals(cls, plan: TrainingPlan) -> list[str]:
        """Return the reasons why native code cannot train by `plan`, whatever the model is."""
        refused = {
            "numba is not installed or is turned off": not HAVE_NUMBA,
            f"training.optimizer is {plan.optimizer}": plan.optimizer not in _OPTIMISERS,
            f"the loss is {plan.loss}": plan.loss not in cls.scores_of,
            f"training.precision is {plan.precision}": plan.precision != "float32",
            "training.algorithm corrects each step": plan.corrected,
            "training.nesterov is set": plan.nesterov,
        }
        return [reason for reason, holds in refused.items() if holds]

    def for_another_thread(self) -> CompiledTrainer:
        """Return a copy, for another thread, that shares the weights and the compiled code."""
        other = CompiledTrainer(copy.deepcopy(self._whole), self._plan, self._layers)
        other._flat, other._models, other._begun = self._flat, self._models, self._begun
        return other

    def serves(self, shape: Sequence[int]) -> bool:
        return self._compiled_for(tuple(shape)) is not None

    def compile(self, shape: Sequence[int]) -> bool:
        """Compile the native code that trains the model on examples of `shape`.

        Returns False, and compiles nothing, if native code does not support examples of this shape.
        """
        model = self._compiled_for(tuple(shape))
        if model is not None:
            sizes = {_OF_CLASSES: (1,), _OF_NUMBERS: (1, model.scores), _OF_TOKENS: (1, *shape)}
            (size,) = (size for losses, size in sizes.items() if self._plan.loss in losses)
            whole = self._plan.loss not in _OF_NUMBERS
            y = torch.zeros(size, dtype=torch.int64 if whole else torch.float32)
            self.start(np.zeros(self._row.shape[1], np.float32))
            some = torch.zeros(1, *shape, dtype=torch.int64 if model.tokens else torch.float32)
            list(self.train([ClientData(some, y, Seeded(0))]))
        return model is not None

    def start(self, weights: Float32s, round: int = 1) -> None:
        self._begun.begin(weights)
        self._loop.start(weights)

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        for client in clients:
            room = self._room_for(client)
            if room is None:
                with _TORCH:
                    trained = list(self._loop.train([client]))
                yield from trained
            else:
                self._train(room, client)
                yield self._row, [None]

    def _room_for(self, client: ClientData) -> Room | None:
        model = self._compiled_for(tuple(client.x.shape[1:]))
        if model is None or not _readable(client.x, model.tokens):
            return None
        if not self._known(client.y, client.x, model.scores):
            return None
        batch, plan = max(min(self._plan.batch_size, len(client)), 1), self._plan
        if self._room is None or self._room.model is not model or self._room.batch < batch:
            try:
                program = model.program(batch, plan.loss, self.kind, states=not plan.bare_sgd)
            except NotServedError:
                return None
            m = _on_a_line(program.floats, self.kind)
            w, weights = np.zeros(program.ints, np.int32), plan.class_weights
            each = np.array(weights or (1.0,) * model.scores, self.kind)
            self._room, self._held = Room(model, batch, program, m, w, each), None
        draws = self._room.program.draws * len(client) * plan.epochs
        return self._room if draws <= _MOST_DRAWS else None

    def _known(self, y: torch.Tensor, x: torch.Tensor, scores: int) -> bool:
        examples, classes = len(x), min(scores, len(self._plan.class_weights or range(scores)))
        if self._plan.loss in _OF_NUMBERS:
            return (
                y.dtype == torch.float32 and len(y) == examples and y.numel() == examples * scores
            )
        of_tokens = self._plan.loss in _OF_TOKENS
        if y.dtype != torch.int64 or y.shape != (x.shape if of_tokens else (examples,)):
            return False
        known = y.numpy().view(np.uint64) < classes  # negative classes become huge
        return bool((known | (y.numpy() == IGNORED) if of_tokens else known).all())

    def _compiled_for(self, shape: tuple[int, ...]) -> Model | None:
        from fedveil.compiled.program import Model

        if shape not in self._models:
            try:
                made = Model(self._layers, shape, self._flat, self.scores_of[self._plan.loss])
            except NotServedError:
                made = None
            self._models[shape] = made
        return self._models[shape]

    def _begin(self, client: ClientData) -> None:
        """Do nothing. A subclass can prepare each attempt to train `client` here.

        The first attempt may defer SGD steps (`deferred_steps`). If their sum is not finite, there
        is a second attempt, without deferred steps.
        """

    def _train(self, room: Room, client: ClientData) -> None:
        from fedveil.compiled.steps import train

        plan, model, program = self._plan, room.model, room.program
        order = np.concatenate([_NOTHING, *client.batches(plan)])
        y: npt.NDArray[Any] = np.ascontiguousarray(client.y.numpy())
        if plan.loss in _OF_NUMBERS:
            y = y.astype(self.kind, copy=False)
        draws = np.empty((0, 0), self.kind)
        if program.draws:
            generator = client.entropy.stream("dropout").generator()
            draws = generator.random((len(order), program.draws), np.float32)
            draws = draws.astype(self.kind, copy=False)
        start = self._begun.packed(model, self.kind)
        x = client.x.numpy().reshape(-1).astype(self.kind, copy=False)
        for hold in (True, False):  # if deferred steps overflow, repeat step by step, as torch does
            self._begin(client)
            begun, self._held = start is self._held, None
            sound = train(
                program.ops, program.settings, program.ends, model.first, room.m, room.w,
                start, x, y.ctypes.data, room.weights, order, plan.epochs, plan.batch_size,
                -1 if plan.bare_sgd else _OPTIMISERS.index(plan.optimizer), self._numbers, draws,
                model.places, begun, hold, self._row[0],
            )  # fmt: skip
            self._held = start
            if sound:
                break


def _on_a_line(count: int, kind: npt.DTypeLike) -> Float32s:
    """Return an array of `count` zeros of the type `kind`.

    The array is aligned to a cache line, or to a huge page if it is large.
    """
    line = _LINE if count * np.dtype(kind).itemsize < _PAGE else _PAGE
    room = np.zeros(count + line, kind)
    begin = -room.ctypes.data % line // room.itemsize
    return room[begin : begin + count]


def _readable(x: torch.Tensor, tokens: int) -> bool:
    """Return True if native code can train on the inputs `x`.

    If `tokens` is above 0, the inputs must be token ids, int64 and below `tokens`. Otherwise they
    must be float32, without infinities, NaN or huge values.
    """
    if not tokens:
        if x.dtype != torch.float32:
            return False
        flat = x.numpy().reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(flat @ flat < _MOST_SQUARES)
    return x.dtype == torch.int64 and bool((x.numpy().view(np.uint64) < tokens).all())

"""Clients of a chain of known layers, each trained from start to end in native code.

A client's training is one call that holds no lock: threads train clients side by side, each in
memory of its own that was taken once, all from the same weights. A client's bytes depend on nobody
else and on no number of threads. What is compiled is kept beside the source, for every process
that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedveil._arrays import Float32s, Int32s
from fedveil._kernels import HAVE_NUMBA
from fedveil.learning.compiled.program import Model, NotServedError, Program
from fedveil.learning.compiled.reading import plain_layers
from fedveil.learning.trainer import ClientData, LoopTrainer, Trained, TrainingPlan
from fedveil.learning.weight_layout import Layout

_NO_DRAWS = np.zeros((0, 0), np.float32)
_OPTIMISERS = ("sgd", "adam", "adamw", "adagrad")


class Start:
    """A round's weights as they are computed with: all threads read the same."""

    def __init__(self) -> None:
        self._weights = np.empty(0, np.float32)
        self._packed: tuple[Model, Float32s] | None = None

    def begin(self, weights: Float32s) -> None:
        """Forget those of the last round."""
        self._weights, self._packed = weights, None

    def packed(self, model: Model) -> Float32s:
        """The weights, laid out for a model."""
        from fedveil.learning.compiled.steps import move

        if self._packed is None or self._packed[0] is not model:
            packed = np.zeros(model.start_size, np.float32)
            move(model.places, 0, packed, self._weights, True)
            self._packed = model, packed
        return self._packed[1]


@dataclass(frozen=True)
class _Room:
    """A program and its memory, for batches and rows of up to so many."""

    model: Model
    batch: int
    few: int
    program: Program
    m: Float32s
    w: Int32s


class CompiledTrainer:
    """Trains a chain of known layers; what is odd about a client is for torch to say."""

    chunk = least = 1

    def __init__(self, model: nn.Module, plan: TrainingPlan, layers: Sequence[nn.Module]) -> None:
        self._plan, self._layers = plan, layers
        layout = Layout(model)
        self._flat = {id(entry.tensor): entry.start for entry in layout.entries}
        self._row = np.zeros((1, layout.dimension), np.float32)
        self._loop = LoopTrainer(model, plan)
        self._start = Start()
        self._models: dict[tuple[int, ...], Model | None] = {}
        self._rooms: dict[bool, _Room] = {}
        self._numbers = np.array([plan.lr, plan.momentum, plan.weight_decay, 0.0, -1.0])

    @classmethod
    def of(cls, model: nn.Module, plan: TrainingPlan) -> CompiledTrainer | None:
        """The trainer of such a model under a plan that it knows; None for another."""
        layers = plain_layers(model) if HAVE_NUMBA and plan.optimizer in _OPTIMISERS else None
        return None if layers is None else cls(model, plan, layers)

    def start(self, weights: Float32s) -> None:
        self._start.begin(weights)
        self._loop.start(weights)

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        for client in clients:
            model = self._model(client)
            if model is None:
                yield from self._loop.train([client])
            else:
                self._train(model, client)
                yield self._row, [None]

    def _model(self, client: ClientData) -> Model | None:
        """The layers as compiled for such examples; None where torch must look at them."""
        shape = tuple(client.x.shape[1:])
        if shape not in self._models:
            try:
                self._models[shape] = Model(self._layers, shape, self._flat)
            except NotServedError:
                self._models[shape] = None
        model = self._models[shape]
        if model is None or client.x.dtype != torch.float32 or client.y.dtype != torch.int64:
            return None
        y = client.y.numpy()
        known = y.shape == (len(client.x),) and (not len(y) or 0 <= y.min() <= y.max() < model.classes)
        return model if known else None

    def _train(self, model: Model, client: ClientData) -> None:
        from fedveil.learning.compiled.steps import train

        plan, entropy = self._plan, client.entropy
        order = np.concatenate([np.empty(0, np.int64), *client.batches(plan)])
        few = plan.bare_sgd and len(order) <= model.most_rows
        room = self._room(model, min(plan.batch_size, max(1, len(client))), len(order) if few else 0)
        program = room.program
        draws = _NO_DRAWS
        if program.draws:
            generator = entropy.stream("dropout").generator()
            draws = generator.random((len(order), program.draws), np.float32)
        train(
            program.ops, program.settings, program.ends, program.first, room.m, room.w,
            self._start.packed(model), program.own, client.x.numpy().reshape(len(client), -1),
            client.y.numpy(), order, plan.epochs, plan.batch_size,
            -1 if plan.bare_sgd else _OPTIMISERS.index(plan.optimizer), self._numbers, draws,
            model.places, self._row[0],
        )  # fmt: skip

    def _room(self, model: Model, batch: int, rows: int) -> _Room:
        """Memory that is large enough, and grows in large steps."""
        from fedveil.learning.compiled.codes import link

        room = self._rooms.get(rows > 0)
        if room is None or room.model is not model or room.batch < batch or room.few < rows:
            few = -(-rows // 64) * 64
            program = model.program(batch, few=few, states=not self._plan.bare_sgd)
            link(program.ops, program.ends, np.float32)
            m = np.zeros(program.floats, np.float32)
            room = _Room(model, batch, few, program, m, np.zeros(program.ints, np.int32))
            self._rooms[rows > 0] = room
        return room

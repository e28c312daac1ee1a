"""Trains in native code with the loss function of a user's own task."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import nn

from fedveil.base.example_arrays import opened
from fedveil.compiled import fields as f
from fedveil.compiled.compiled_trainer import CompiledTrainer, Room
from fedveil.compiled.operation import ROW, TOKENS, NotServedError
from fedveil.entropy import Seeded
from fedveil.learning.device import seed_generators
from fedveil.learning.learning_task import Task, as_tensors
from fedveil.learning.losses import OWN
from fedveil.learning.task_trainer import TaskTrainer
from fedveil.learning.trainer import ClientData, Trained, TrainingPlan

#: The arguments of a native loss (`cost`): five addresses, the number of examples, and the scale.
_CALL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_int64, ctypes.c_double)


class OwnLossTrainer(CompiledTrainer):
    """Trains clients one after another with a user's own loss function."""

    native, own_step = False, True
    scores_of: ClassVar[dict[str, tuple[str, ...]]] = {OWN: (ROW, TOKENS)}

    def __init__(
        self, model: nn.Module, plan: TrainingPlan, layers: Sequence[nn.Module], task: Task
    ) -> None:
        super().__init__(model, plan, layers, TaskTrainer(model, plan, task))
        self._task = task
        self._callback = _CALL(self._called)
        self._room: Room
        self._client: ClientData
        self._failure: BaseException | None = None

    def compile(self, shape: Sequence[int]) -> bool:
        """Compile the native code for examples of `shape`. The user's loss is not called.

        Returns False if native code does not support examples of this shape.
        """
        model = self._compiled_for(tuple(shape))
        if model is None:
            return False
        self.start(np.zeros(self._row.shape[1], np.float32))
        x = torch.zeros(1, *shape, dtype=torch.int64 if model.tokens else torch.float32)
        one = ClientData(x, torch.zeros(1), Seeded(0))
        room = self._room_for(one)
        if room is not None:
            self._train_with(room, one, NotServedError("no loss is computed"))
        return room is not None

    def for_another_thread(self) -> OwnLossTrainer:
        """Raise `NotImplementedError`, because a user's loss may only run in one thread."""
        raise NotImplementedError("OwnLossTrainer serves one thread")

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        for client in clients:
            room = self._room_for(client)
            if room is None:
                yield from self._loop.train([client])
                continue
            yield self._row, [self._failure_of(room, client)]

    def _failure_of(self, room: Room, client: ClientData) -> Exception | None:
        """Train `client` in the memory `room`. Returns the user's exception, or None."""
        return self._train_with(room, client, None)

    def _train_with(
        self, room: Room, client: ClientData, failure: Exception | None
    ) -> Exception | None:
        """Train as `_failure_of` does. If `failure` is given, all gradients of the loss are 0."""
        self._client, self._room, self._failure = client, room, failure
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert address is not None
        room.program.ends[1, f.FORWARD] = address
        self._train(room, client)
        raised: BaseException | None = self._failure
        if raised is not None and not isinstance(raised, Exception):
            raise raised  # Ctrl-C
        return raised

    def _begin(self, client: ClientData) -> None:
        seed_generators(client.torch_seed(), torch.device("cpu"))

    def _known(self, y: torch.Tensor, x: torch.Tensor, scores: int) -> bool:
        return True  # only the task knows its targets

    def _called(
        self, m: int, ends: int, y: int, rows: int, weights: int, count: int, scale: float
    ) -> None:
        """Compute the gradient of a batch's loss by the user's function, and write it to memory.

        Native code calls this method in place of a native loss, once per batch of `count` examples.
        `rows` is the address of the examples' indices. The other arguments are those of a native
        loss and are not used. An exception of the user's function cannot pass through native code.
        The method stores it, and sets the gradient to 0.
        """
        gradient = self._ends(f.DY, count)
        try:
            if self._failure is not None:
                raise self._failure
            positions = np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(rows))
            gradient[:] = self._gradient(self._ends(f.Y, count), positions)
        except BaseException as error:
            self._failure = error
            gradient[:] = 0

    def _gradient(self, scores: Any, positions: Any) -> Any:
        """Return the gradient of the user's loss with respect to `scores`, the outputs of a batch.

        `positions` are the indices of the batch's examples. Under SGD without momentum or decay,
        the result is multiplied by -learning rate.
        """
        leaf = torch.from_numpy(scores.copy()).requires_grad_()
        targets = as_tensors(opened(self._client.rows[1][positions]), self._task.target_padding)
        loss = self._task.loss(leaf.clone(), targets)  # a loss may change its outputs in place
        (gradient,) = torch.autograd.grad(loss, leaf)
        return gradient.numpy() * (-self._plan.lr if self._plan.bare_sgd else 1.0)

    def _ends(self, column: int, count: int) -> Any:
        row, m = self._room.program.ends[1], self._room.m
        of_tokens = self._room.model.scores_of == TOKENS
        shape = (row[f.OC], row[f.OW]) if of_tokens else (self._room.model.scores,)
        steps = (row[f.OW], 1) if of_tokens else (1,)
        return as_strided(
            m[row[column] :],
            (count, *map(int, shape)),
            [int(step) * m.itemsize for step in (row[f.YS], *steps)],
        )

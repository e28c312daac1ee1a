"""Trains the clients of a cohort. Each starts from the global weights and uses its own data.

`LoopTrainer` is the reference: `VmapTrainer` and `compiled.CompiledTrainer` give the same updates,
up to rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Array, Bools, Float32s, Int64s
from fedveil.base.example_arrays import is_plain
from fedveil.entropy import Entropy
from fedveil.learning.device import seed_generators, tiny_is_zero, whole_float32
from fedveil.learning.losses import mean_loss
from fedveil.learning.precision import computing
from fedveil.learning.weight_layout import Layout


@dataclass(frozen=True)
class TrainingPlan:
    """The settings of a client's local training: epochs, batches, optimiser, loss and precision."""

    epochs: int
    batch_size: int
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    #: A name from `losses.LOSSES`, or `losses.WEIGHTED` or `losses.OWN`.
    loss: str = "cross_entropy"
    #: The factor of each class's loss under `losses.WEIGHTED`.
    class_weights: tuple[float, ...] | None = None
    #: The L2 norm to which each step's gradient is clipped. None: no clipping.
    gradient_norm: float | None = None
    #: True if the client's `ClientData.correction` is added to its gradients.
    corrected: bool = False
    #: FedProx's mu: adds mu * (w - w at the round's start) to the gradient, before it is clipped.
    proximal: float = 0.0
    #: True for Nesterov's momentum, which needs `momentum`.
    nesterov: bool = False
    #: The number format of the forward and backward passes (`precision`).
    precision: str = "float32"

    @property
    def plain_sgd(self) -> bool:
        """True for SGD without momentum and without changes of the gradient, such as clipping.

        A step is w -= lr * (gradient + weight_decay * w).
        """
        return self.optimizer == "sgd" and self.momentum == 0 and not self.changes_gradients

    @property
    def changes_gradients(self) -> bool:
        """True if these settings change the loss's gradient before a step, such as by clipping."""
        return self.corrected or self.gradient_norm is not None or self.proximal > 0

    @property
    def bare_sgd(self) -> bool:
        """True if a step is exactly w -= lr * gradient."""
        return self.plain_sgd and not self.weight_decay


class GivenUp(Exception):
    """Raised in a training whose result is no longer needed."""


def never() -> bool:
    """Return False: the training's result is needed in any case."""
    return False


@dataclass(frozen=True)
class ClientData:
    """One client's examples `x` with targets `y`, and the source of randomness `entropy`."""

    x: torch.Tensor
    y: torch.Tensor
    entropy: Entropy
    #: The same data as arrays, if torch has no type for it (`example_arrays`).
    structured: tuple[Array, Array] | None = None
    #: Added to each gradient of the client if the plan is `corrected`.
    correction: torch.Tensor | None = None
    #: A mask of the examples that count, for `ClippedExamplesTrainer`. None: all count.
    usable: Bools | None = None
    #: Returns True once the result of the training is no longer needed.
    given_up: Callable[[], bool] = never

    @classmethod
    def of(cls, x: Array, y: Array, entropy: Entropy, usable: Bools | None = None) -> ClientData:
        """Return a client's data from arrays of examples `x` and targets `y`.

        `usable` masks the examples that count (None: all). It is ignored for structured arrays,
        whose examples have several inputs or different lengths.
        """
        if is_plain(x) and is_plain(y):
            return cls(torch.from_numpy(x), torch.from_numpy(y), entropy, usable=usable)
        return cls(torch.empty(len(x), 0), torch.empty(len(y)), entropy, (x, y))

    @property
    def rows(self) -> tuple[Array, Array]:
        """The examples and their targets as NumPy arrays."""
        return self.structured or (self.x.numpy(), self.y.numpy())

    def __len__(self) -> int:
        return len(self.y)

    def torch_seed(self) -> int:
        """Return the seed of torch's generator during this client's training."""
        return self.entropy.stream("torch").integer(1 << 63)

    def batches(self, plan: TrainingPlan) -> Iterator[Int64s]:
        """Yield the indices of each batch's examples. Every epoch has a new order.

        Raises `GivenUp` in place of the next batch if the training's result is no longer needed.
        """
        for positions in self._batches(plan):
            if self.given_up():
                raise GivenUp
            yield positions

    def _batches(self, plan: TrainingPlan) -> Iterator[Int64s]:
        # a single example needs no order, and a generator would take longer than the training
        if len(self) == 1:
            yield from [np.zeros(1, np.int64)] * plan.epochs
            return
        order = self.entropy.stream("order").generator()
        for _ in range(plan.epochs):
            positions = order.permutation(len(self))
            for start in range(0, len(self), plan.batch_size):
                yield positions[start : start + plan.batch_size]


#: The updates of some clients, [clients, parameters], and the exception of each or None.
Trained = tuple[Float32s, Sequence[Exception | None]]


class Trainer(Protocol):
    """The interface of all trainers.

    `start` sets the global weights of a round. `train` then trains clients, each from these
    weights.
    """

    #: The best number of clients to pass to `train`.
    chunk: int
    #: The least number of clients to pass to `train`, if there are enough. It is 1 unless an update
    #: depends on which clients train together.
    least: int
    #: True if it trains in native code, without copying examples and with several threads.
    native: bool
    #: True if a user's task defines the training step, which may not be vectorisable.
    own_step: bool

    def start(self, weights: Float32s, round: int = 1) -> None:
        """Begin `round` with these weights. Do not change the array before the next `start`."""

    def compile(self, shape: Sequence[int]) -> bool:
        """Compile native code for examples of `shape`. Returns False if the trainer has none."""

    def for_another_thread(self) -> Trainer:
        """Return another trainer, with the same weights, for use in another thread.

        Raises NotImplementedError if the trainer can only be used in one thread.
        """

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        """Yield the clients' updates in order, several at a time, as the rows of an array.

        Each array comes with a list that has, for each client, the exception that its training
        raised, or None. A failed client's row has no meaning. An array is valid until the next
        yield.
        """


class OneThread:
    """Base class of trainers that use one thread and compile nothing."""

    chunk = least = 1
    native = own_step = False

    def compile(self, shape: Sequence[int]) -> bool:
        """Return False, because the trainer has no native code to compile."""
        return False

    def for_another_thread(self) -> Trainer:
        """Raise an error, because these trainers work in one thread only."""
        raise NotImplementedError(f"{type(self).__name__} serves one thread")


class OneByOne(OneThread, ABC):
    """Base class of trainers that train clients one after another in the same model object.

    `layout` is the model's layout. Subclasses define `_train_one`.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout, self._device = layout, device
        row = torch.empty(1, layout.dimension)
        layout.move_into(row[0])
        self._row = row.numpy()
        self._weights = np.empty(0, np.float32)

    def start(self, weights: Float32s, round: int = 1) -> None:
        self._weights = weights

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        start = torch.from_numpy(self._weights).to(self._device)
        for client in clients:
            failure: Exception | None = None
            try:
                with tiny_is_zero(), whole_float32():
                    self._train_one(start, client)
                self._layout.change(self._weights, self._row[0])
            except Exception as error:  # the user's model or task may raise anything
                failure = error
            yield self._row, [failure]

    @abstractmethod
    def _train_one(self, start: torch.Tensor, client: ClientData) -> None:
        """Train one client from the weights `start`, and leave the trained weights in the model."""


class LoopTrainer(OneByOne):
    """Trains clients one after another with torch, by the loss and the optimiser of `plan`."""

    def __init__(self, model: nn.Module, plan: TrainingPlan, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._plan = plan
        self._images = any(isinstance(module, nn.Conv2d) for module in model.modules())
        self._norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
        self._model = model.to(self._device)
        if self._images:
            self._model = self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        super().__init__(Layout(self._model), self._device)
        self._parameters = [e.tensor for e in self._layout.entries if e.fate == "parameter"]
        self._loss = mean_loss(plan.loss, plan.class_weights)
        self._outputs = computing(self._model, plan.precision, self._device)

    def _train_one(self, start: torch.Tensor, client: ClientData) -> None:
        hooks = [norm.register_forward_pre_hook(_lying_plainly) for norm in self._norms]
        try:
            self._train_alone(start, client)
        finally:
            for hook in hooks:
                hook.remove()

    def _train_alone(self, start: torch.Tensor, client: ClientData) -> None:
        self._layout.write(start)
        self._model.train()
        seed_generators(client.torch_seed(), self._device)
        if self._plan.plain_sgd:
            for x, y in self._batches(client):
                self._plain_step(x, y)
            return
        optimizer, begun = make_optimizer(self._parameters, self._plan), self._of_parameters(start)
        vector = client.correction
        terms = None if vector is None else self._of_parameters(vector.to(self._device))
        for x, y in self._batches(client):
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(self._loss(self._outputs(x), y))
            change_gradients(self._parameters, begun, self._plan, terms)
            optimizer.step()

    def _of_parameters(self, vector: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(self._layout.entries, self._layout.views(vector), strict=True)
        return [view for entry, view in pairs if entry.fate == "parameter"]

    def _batches(self, client: ClientData) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for positions in client.batches(self._plan):
            index = torch.from_numpy(positions)
            x = client.x[index].to(self._device)
            if self._images and x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            yield x, client.y[index].to(self._device)

    def _plain_step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = self._loss(self._outputs(x), y)
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        used = [(p, g) for p, g in zip(self._parameters, gradients, strict=True) if g is not None]
        with torch.no_grad():
            if used:
                parameters, steps = [p for p, _ in used], [g for _, g in used]
                if self._plan.weight_decay:
                    steps = [*torch._foreach_add(steps, parameters, alpha=self._plan.weight_decay)]
                torch._foreach_add_(parameters, steps, alpha=-self._plan.lr)


def _lying_plainly(norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the inputs of a `norm` layer, made contiguous if they need no gradients.

    With a non-contiguous input, torch crashes in the backward pass of a GroupNorm.
    """
    return tuple(x if x.requires_grad else x.contiguous() for x in inputs)


@torch.no_grad()
def change_gradients(
    parameters: Sequence[torch.Tensor],
    start: Sequence[torch.Tensor],
    plan: TrainingPlan,
    terms: Sequence[torch.Tensor] | None = None,
) -> None:
    """Add `terms` and FedProx's term to the gradients of `parameters`, then clip the gradients.

    `plan` says if FedProx and clipping are used. `terms` are a correction of the gradients, or
    None. `start` has the parameters' values at the beginning of the round.
    """
    for i, parameter in enumerate(parameters):
        if parameter.grad is not None:
            if terms is not None:
                parameter.grad.add_(terms[i])
            if plan.proximal:
                parameter.grad.add_(parameter - start[i], alpha=plan.proximal)
    if plan.gradient_norm is not None:
        nn.utils.clip_grad_norm_(parameters, plan.gradient_norm)


def make_optimizer(parameters: Sequence[torch.Tensor], plan: TrainingPlan) -> torch.optim.Optimizer:
    """Return a new optimiser of `parameters` with the settings of `plan`."""
    if plan.optimizer != "sgd":
        kinds: dict[str, Callable[..., torch.optim.Optimizer]]
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        kind = kinds.get(plan.optimizer, torch.optim.Adagrad)
        made: torch.optim.Optimizer = kind(parameters, lr=plan.lr, weight_decay=plan.weight_decay)
        return made
    return torch.optim.SGD(
        parameters,
        lr=plan.lr,
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
        nesterov=plan.nesterov,
    )

"""Trains a group of clients at once, in one batched computation. Made for GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedveil.base.array_types import Float32s, Int64s
from fedveil.errors import ModelInvalid
from fedveil.learning.device import seed_generators, tiny_is_zero, whole_float32
from fedveil.learning.losses import each_loss
from fedveil.learning.precision import computing
from fedveil.learning.trainer import ClientData, OneThread, Trained, TrainingPlan, make_optimizer
from fedveil.learning.weight_layout import Layout

#: Clients that are trained at once. All their activations are in memory at the same time.
CHUNK = 32


class VmapTrainer(OneThread):
    """Trains a group of clients at once: one vectorised call computes one step of each client.

    The updates equal those of `LoopTrainer` up to rounding. Models whose forward pass changes
    buffers (BatchNorm) are refused.
    """

    chunk = least = CHUNK

    def __init__(self, model: nn.Module, plan: TrainingPlan, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._plan = plan
        self._losses = each_loss(plan.loss, plan.class_weights)
        weights, at = plan.class_weights, self._device
        self._weights_of = None if weights is None else torch.tensor(weights, device=at)
        self._model = model.to(self._device).train()
        whole = partial(functional_call, self._model)
        self._forward = computing(whole, plan.precision, self._device)
        self._layout = Layout(self._model)
        buffers = [e.name for e in self._layout.entries if e.fate == "buffer"]
        if buffers:
            raise ModelInvalid(
                f"training.engine = vmap cannot train the buffers {', '.join(buffers)}. "
                f"Use engine loop"
            )
        self._weights = np.empty(0, np.float32)
        #: The parameters on which the loss depends, once they are known.
        self._used: list[str] | None = None
        self._gradients = vmap(grad(self._mean_loss), randomness="different")

    def _mean_loss(
        self,
        parameters: dict[str, torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        logits = self._forward((parameters, self._layout.kept), (x,))
        losses = self._losses(logits, y)
        if self._weights_of is not None:  # the weighted mean of `losses.mean_loss`
            counted = (self._weights_of[y] * counts).sum()
            return (losses * counts).sum() / torch.where(counted > 0, counted, 1)
        return (losses * counts).sum() / counts.sum().clamp(min=1)

    def start(self, weights: Float32s, round: int = 1) -> None:
        self._weights = weights

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        """Yield all clients' updates at once. If any client fails, all are trained one by one."""
        updates = np.zeros((len(clients), self._layout.dimension), np.float32)
        failure: Exception | None = None
        try:
            with tiny_is_zero(), whole_float32():
                self._train(clients, torch.from_numpy(updates))
        except Exception as error:  # the user's model may raise anything
            failure = error
        if failure is None or len(clients) == 1:
            yield updates, [failure] * len(clients)
            return
        for client in clients:
            yield from self.train([client])

    def _train(self, clients: Sequence[ClientData], updates: torch.Tensor) -> None:
        start = torch.from_numpy(self._weights).to(self._device)
        self._layout.write(start)
        rows = {
            entry.name: view.expand(len(clients), *view.shape).clone().requires_grad_()
            for entry, view in zip(self._layout.entries, self._layout.views(start), strict=True)
        }
        schedules = [list(client.batches(self._plan)) for client in clients]
        data = [(client.x.to(self._device), client.y.to(self._device)) for client in clients]
        used = self._find_used(start, data) if self._plan.weight_decay else [*rows]
        seed_generators(clients[0].torch_seed(), self._device)
        optimizer = make_optimizer([rows[name] for name in used], self._plan)
        for step in range(max(map(len, schedules))):
            x, y, counts = self._step_batch(data, schedules, step)
            detached = {name: row.detach() for name, row in rows.items()}
            gradients = self._gradients(detached, x, y, counts)
            for name, gradient in self._changed(gradients, detached, start).items():
                rows[name].grad = gradient
            optimizer.step()
            for i, schedule in enumerate(schedules):
                if len(schedule) == step + 1:
                    self._take_out(rows, i, start, updates[i])

    def _find_used(
        self, start: torch.Tensor, data: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> list[str]:
        """Return the names of the parameters on which the loss depends.

        `start` are the weights, and `data` has each client's inputs and targets. Returns all names
        if no client has an example. As in `LoopTrainer`, the other parameters get no weight decay.
        They are found by differentiating one example without vmap, because vmap returns zeros for
        them, like for a parameter whose gradient happens to be zero.
        """
        if self._used is None:
            names = [entry.name for entry in self._layout.entries]
            examples = [(x[:1], y[:1]) for x, y in data if len(y)]
            if not examples:
                return names
            views = [view.clone().requires_grad_() for view in self._layout.views(start)]
            one = torch.ones(1, device=self._device)
            loss = self._mean_loss(dict(zip(names, views, strict=True)), *examples[0], one)
            found = torch.autograd.grad(loss, views, allow_unused=True)
            self._used = [name for name, g in zip(names, found, strict=True) if g is not None]
        return self._used

    def _changed(
        self, gradients: dict[str, torch.Tensor], rows: dict[str, torch.Tensor], start: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if self._plan.proximal:
            for entry, w in zip(self._layout.entries, self._layout.views(start), strict=True):
                gradients[entry.name] += self._plan.proximal * (rows[entry.name] - w)
        if self._plan.gradient_norm is not None:
            norms = torch.stack([_norm_of_each(g) for g in gradients.values()]).norm(dim=0)
            # Computed as in torch's clip_grad_norm_.
            factors = (self._plan.gradient_norm / (norms + 1e-6)).clamp(max=1)
            for gradient in gradients.values():
                gradient *= factors.view(-1, *[1] * (gradient.ndim - 1))
        return gradients

    def _step_batch(
        self,
        data: Sequence[tuple[torch.Tensor, torch.Tensor]],
        schedules: Sequence[Sequence[Int64s]],
        step: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batches = [s[step] if step < len(s) else np.zeros(0, np.int64) for s in schedules]
        width = max(map(len, batches))
        padded = np.zeros((len(batches), width), np.int64)
        counts = np.zeros((len(batches), width), np.float32)
        for i, batch in enumerate(batches):
            padded[i, : len(batch)] = batch
            counts[i, : len(batch)] = 1
        index = torch.from_numpy(padded).to(self._device)
        x = torch.stack([data[i][0][row] for i, row in enumerate(index)])
        y = torch.stack([data[i][1][row] for i, row in enumerate(index)])
        return x, y, torch.from_numpy(counts).to(self._device)

    @torch.no_grad()
    def _take_out(
        self, rows: dict[str, torch.Tensor], i: int, start: torch.Tensor, out: torch.Tensor
    ) -> None:
        trained = torch.cat([row[i].reshape(-1) for row in rows.values()])
        out.copy_(trained - start)


def _norm_of_each(gradient: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of each client's gradient. `gradient` is [clients, *parameter's shape]."""
    norms: torch.Tensor = gradient.reshape(len(gradient), -1).norm(dim=1)
    return norms

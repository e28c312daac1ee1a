"""Clients of dense nets, trained together and without weights of their own.

All clients of a round start from the same weights, and a step of plain SGD changes a dense layer
by a product of few rows, -lr G'X: X is what came into the layer, G the gradient at what went out
of it, a row for each example of the batch. With H = -lr G, and X<, H< the rows of a client's
earlier steps, its layer is

    W + H<' X<,   b + H<' 1

and need not be written out. A batch goes forward and backward through it by

    x W' + b + (x X<' + 1) H<        and        h W + (h H<') X<

and what the client changed in the end is one product, H'X over all its rows. Where a client has
few rows next to the widths of the layers, that is less to compute than a product for every step,
and less memory to move than a model of its own: a group of clients walks through W panel by
panel, and finds the panels in the processor's own cache.

Every product is one client's alone and its shape does not depend on the others, so that neither
do its last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil._arrays import Float32s
from fedveil.learning.chain import Chain, cross_entropy_gradient, unrolled
from fedveil.learning.trainer import ClientData, LoopTrainer, Trained, TrainingPlan
from fedveil.learning.weight_layout import Layout

#: Up to how many rows it pays, for each of the layers' m n / (m + n): with more, X< and H< are as
#: dear as W.
ROWS_FOR_WIDTH = 0.8
#: A model with fewer weights spends its time between the products: there so many rows always pay.
SMALL_WEIGHTS, SMALL_ROWS = 1 << 16, 128
#: The rows of a group's clients have at most so many entries, unless it is a client alone: 16 MB.
GROUP_ENTRIES = 1 << 22
#: Entries of W that stay in the processor's second-level cache beside what meets them: 512 kB.
PANEL_ENTRIES = 1 << 17
#: The rows of an update that are made at once, so that they stay in the cache until all is added.
UPDATE_ROWS = 128

_aten: Any = torch.ops.aten
#: In place: forward, and the way back from the gradient and the output.
_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[..., torch.Tensor], ...]] = {
    nn.ReLU: (torch.relu_, lambda g, y: _aten.threshold_backward.grad_input(g, y, 0, grad_input=g)),
    nn.Tanh: (torch.tanh_, lambda g, y: _aten.tanh_backward.grad_input(g, y, grad_input=g)),
    nn.Sigmoid: (
        torch.sigmoid_,
        lambda g, y: _aten.sigmoid_backward.grad_input(g, y, grad_input=g),
    ),
}


@dataclass(frozen=True)
class DenseLayer:
    """A dense layer, its places in the model's vector, and the activation that follows."""

    outputs: int
    inputs: int
    weight: slice
    bias: slice | None
    activation: type[nn.Module] | None

    def w(self, vector: torch.Tensor) -> torch.Tensor:
        """Its part of a vector of the model."""
        return vector[self.weight].view(self.outputs, self.inputs)


#: Columns of a matrix, and their place: contiguous, since rows of 4 kB evict each other.
_Panel = tuple[slice, torch.Tensor]


@dataclass(frozen=True)
class _Start:
    """A layer where the round begins, cut as its products read it."""

    b: torch.Tensor
    #: Of W', for the way forward.
    wt: Sequence[_Panel]
    #: Of W, for the way back; none for the first layer.
    w: Sequence[_Panel]


@dataclass
class _Member:
    """One client on its way through its batches; `x` and `h` have a row for each example of each.

    `x[i]` is what comes into layer i, and so what comes out of the one before; the last is the
    logits. `h[i]` is H of layer i.
    """

    y: torch.Tensor
    ends: Sequence[int]
    x: Sequence[torch.Tensor]
    h: Sequence[torch.Tensor]

    def batch(self, step: int) -> _Batch:
        """The rows of one batch, and of all before it."""
        begin, end = self.ends[step - 1] if step else 0, self.ends[step]
        return _Batch(
            y=self.y[begin:end],
            x=[rows[begin:end] for rows in self.x],
            h=[rows[begin:end] for rows in self.h],
            before=[(x[:begin], h[:begin]) for x, h in zip(self.x, self.h, strict=False) if begin],
        )


@dataclass(frozen=True)
class _Batch:
    """Views of a member's rows: x and h of a batch; X<, H< of each layer unless it is the first."""

    y: torch.Tensor
    x: Sequence[torch.Tensor]
    h: Sequence[torch.Tensor]
    before: Sequence[tuple[torch.Tensor, torch.Tensor]]


class DenseCohortTrainer:
    """Trains clients of a dense chain by plain SGD in groups; those with many rows one by one."""

    chunk = 8
    least = 1

    def __init__(self, model: nn.Module, plan: TrainingPlan, layers: Sequence[DenseLayer]) -> None:
        self._layers = layers
        self._plan = plan
        self._loop = LoopTrainer(model, plan)
        self.flattens = isinstance(modules_of(model)[0], nn.Flatten)
        self._weights = np.empty(0, np.float32)
        self._starts: list[_Start] = []
        # What is no weight or bias of a dense layer is not trained: its change stays zero.
        self._row = torch.zeros(1, Layout(model).dimension)
        sizes = [(layer.outputs, layer.inputs) for layer in layers]
        weights = sum(m * n for m, n in sizes)
        self._most_rows = ROWS_FOR_WIDTH * weights / sum(map(sum, sizes))
        if weights < SMALL_WEIGHTS:
            self._most_rows = max(self._most_rows, SMALL_ROWS)
        self._entries_a_row = layers[0].inputs + 2 * sum(layer.outputs for layer in layers)

    @classmethod
    def of(cls, model: nn.Module, plan: TrainingPlan) -> DenseCohortTrainer | None:
        """The trainer of dense layers with activations between; None for another model or plan."""
        layers = dense_layers(model) if plan.bare_sgd and Chain.of(model) is not None else None
        return None if layers is None else cls(model, plan, layers)

    def start(self, weights: Float32s) -> None:
        self._loop.start(weights)
        self._weights = weights
        self._starts = []

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        for group in self._groups(clients):
            if self._rows(group[0]) > self._most_rows:
                yield from self._loop.train(group)
            else:
                yield from self._train_group(group)

    def _groups(self, clients: Sequence[ClientData]) -> Iterator[Sequence[ClientData]]:
        """Neighbours with few rows together, as long as they are not too many; the others alone."""
        group: list[ClientData] = []
        entries = 0
        for client in clients:
            rows = self._rows(client)
            more = rows * self._entries_a_row
            if group and (
                entries + more > GROUP_ENTRIES or max(rows, self._rows(group[0])) > self._most_rows
            ):
                yield group
                group, entries = [], 0
            group.append(client)
            entries += more
        if group:
            yield group

    def _rows(self, client: ClientData) -> int:
        return len(client) * self._plan.epochs

    @torch.no_grad()
    def _train_group(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        if not self._starts:
            self._starts = self._cut(torch.from_numpy(self._weights))
        for member in self._together(clients):
            failure = member if isinstance(member, Exception) else None
            if isinstance(member, _Member):
                self._write_update(member)
            yield self._row.numpy(), [failure]

    def _cut(self, weights: torch.Tensor) -> list[_Start]:
        starts: list[_Start] = []
        for layer in self._layers:
            w = layer.w(weights)
            b = torch.zeros(layer.outputs) if layer.bias is None else weights[layer.bias]
            starts.append(_Start(b, _panels(w.t()), _panels(w) if starts else ()))
        return starts

    def _together(self, clients: Sequence[ClientData]) -> Sequence[_Member | Exception]:
        """The clients at the end of their batches; where one raises, each goes alone."""
        try:
            members = [self._member(client) for client in clients]
            self._meet(0, [(m.x[0], m.x[1]) for m in members])
            for step in range(max((len(m.ends) for m in members), default=0)):
                self._step([m.batch(step) for m in members if step < len(m.ends)])
            return members
        except Exception as error:  # labels and shapes that the model does not take
            if len(clients) == 1:
                return [error]
            return [self._together([client])[0] for client in clients]

    def _member(self, client: ClientData) -> _Member:
        batches = [*client.batches(self._plan)]
        index = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *batches]))
        x = client.x[index].flatten(1) if self.flattens else client.x[index]
        return _Member(
            y=client.y[index],
            ends=[*accumulate(map(len, batches))],
            x=[x, *(torch.empty(len(index), layer.outputs) for layer in self._layers)],
            h=[torch.empty(len(index), layer.outputs) for layer in self._layers],
        )

    def _step(self, batches: Sequence[_Batch]) -> None:
        last = len(self._layers) - 1
        for i in range(last + 1):
            if i:  # the first layer has met all rows of all batches
                self._meet(i, [(batch.x[i], batch.x[i + 1]) for batch in batches])
            for batch in batches:
                self._finish_forward(i, batch)
        for batch in batches:
            gradient = cross_entropy_gradient(batch.x[-1], batch.y)
            torch.mul(gradient, -self._plan.lr, out=batch.h[last])
        for i in range(last, 0, -1):
            self._meet_backward(i, [(batch.h[i], batch.h[i - 1]) for batch in batches])
            for batch in batches:
                self._finish_backward(i, batch)

    def _meet(self, i: int, rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """z = x W' + b, for every client's rows x."""
        for place, wt in self._starts[i].wt:
            b = self._starts[i].b[place]
            for x, z in rows:
                torch.addmm(b, x, wt, out=z[:, place])

    def _finish_forward(self, i: int, batch: _Batch) -> None:
        """z += (x X<' + 1) H<, and the activation of that."""
        x, z, layer = batch.x[i], batch.x[i + 1], self._layers[i]
        if batch.before:
            x_before, h_before = batch.before[i]
            both = x.mm(x_before.t())
            z.addmm_(both if layer.bias is None else both.add_(1), h_before)
        if layer.activation is not None:
            _ACTIVATIONS[layer.activation][0](z)

    def _meet_backward(self, i: int, rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """back = h W, for every client's rows h; -lr is in h from the loss on."""
        for place, w in self._starts[i].w:
            for h, back in rows:
                torch.mm(h, w, out=back[:, place])

    def _finish_backward(self, i: int, batch: _Batch) -> None:
        """back += (h H<') X<, and back through the activation that made x."""
        h, back, activation = batch.h[i], batch.h[i - 1], self._layers[i - 1].activation
        if batch.before:
            x_before, h_before = batch.before[i]
            back.addmm_(h.mm(h_before.t()), x_before)
        if activation is not None:
            _ACTIVATIONS[activation][1](back, batch.x[i])

    def _write_update(self, member: _Member) -> None:
        """H'X of each layer, and the sum of H for its bias."""
        row = self._row[0]
        for layer, x, h in zip(self._layers, member.x, member.h, strict=False):
            change = layer.w(row)
            for some in _slices(layer.outputs, UPDATE_ROWS):
                torch.mm(h[:, some].t(), x, out=change[some])
            if layer.bias is not None:
                torch.sum(h, 0, out=row[layer.bias])


def _panels(matrix: torch.Tensor) -> list[_Panel]:
    width = max(64, PANEL_ENTRIES // len(matrix) // 32 * 32)
    return [(some, matrix[:, some].contiguous()) for some in _slices(matrix.shape[1], width)]


def _slices(size: int, length: int) -> list[slice]:
    return [slice(start, start + length) for start in range(0, size, length)]


def modules_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in unrolled(model) or () if type(module) is not nn.Identity]


def dense_layers(model: nn.Module) -> list[DenseLayer] | None:
    """The dense layers that the model is, flattening its input or not; None where it is more."""
    modules = modules_of(model)
    first = modules[0] if modules else None
    if isinstance(first, nn.Flatten) and (first.start_dim, first.end_dim) == (1, -1):
        modules = modules[1:]
    places = {id(e.tensor): slice(e.start, e.stop) for e in Layout(model).entries}
    layers = []
    for module, after in zip(modules[0::2], [*modules[1::2], None], strict=False):
        if type(module) is not nn.Linear or not (after is None or type(after) in _ACTIVATIONS):
            return None
        layers.append(
            DenseLayer(
                outputs=module.out_features,
                inputs=module.in_features,
                weight=places[id(module.weight)],
                bias=None if module.bias is None else places[id(module.bias)],
                activation=None if after is None else type(after),
            )
        )
    return layers if len(modules) == 2 * len(layers) - 1 else None

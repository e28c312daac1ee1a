"""One step of a linear model on all of a client's examples: the update itself, in two products.

With P the softmax of the scores and Y the labels as rows of zeros and a one, the mean
cross-entropy of n examples X falls along -(P - Y)'X / n: a step of plain SGD is that times the
learning rate, and needs no tape and no weights of the client's own. Scores lie [classes, examples],
which for few classes is half the price of the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from fedveil._arrays import Float32s
from fedveil.learning.dense_trainer import DenseCohortTrainer, DenseLayer, dense_layers
from fedveil.learning.trainer import ClientData, Trained, TrainingPlan


class OneStepTrainer:
    """Clients of one dense layer, each of which takes one step with all of its examples.

    A client with more examples than a batch holds is trained as any other dense net's.
    """

    chunk = 8
    least = 1

    def __init__(self, layer: DenseLayer, plan: TrainingPlan, dense: DenseCohortTrainer) -> None:
        self._layer = layer
        self._plan = plan
        self._dense = dense
        self._weights = torch.empty(0)
        self._row = torch.zeros(1, layer.outputs * (layer.inputs + (layer.bias is not None)))
        self._labels = torch.eye(layer.outputs)

    @classmethod
    def of(cls, model: nn.Module, plan: TrainingPlan) -> OneStepTrainer | None:
        """The trainer of such a model under a plan of one epoch; None for another."""
        dense = DenseCohortTrainer.of(model, plan) if plan.epochs == 1 else None
        layers = None if dense is None else dense_layers(model)
        if dense is None or layers is None or len(layers) > 1 or layers[0].activation is not None:
            return None
        return cls(layers[0], plan, dense)

    def start(self, weights: Float32s) -> None:
        self._dense.start(weights)
        self._weights = torch.from_numpy(weights)

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        for client in clients:
            if not 0 < len(client) <= self._plan.batch_size:
                yield from self._dense.train([client])
                continue
            failure: Exception | None = None
            try:
                self._step(client)
            except Exception as error:  # labels and shapes that the model does not take
                failure = error
            yield self._row.numpy(), [failure]

    @torch.no_grad()
    def _step(self, client: ClientData) -> None:
        layer, row = self._layer, self._row[0]
        x = client.x.flatten(1) if self._dense.flattens else client.x
        scores = layer.w(self._weights).mm(x.t())
        if layer.bias is not None:
            scores += self._weights[layer.bias, None]
        h = torch.softmax(scores, 0).sub_(self._labels.index_select(1, client.y))
        h.mul_(-self._plan.lr / len(client))
        torch.mm(h, x, out=layer.w(row))
        if layer.bias is not None:
            torch.sum(h, 1, out=row[layer.bias])

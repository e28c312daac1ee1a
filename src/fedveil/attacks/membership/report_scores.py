"""Membership scores of examples, computed from one client's report.

A larger score means that the client is likelier to have trained on the example. The loss of a text
is the mean loss over its tokens with a target, so padding has no effect.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedveil.attacks.membership.model_answers import are_classes
from fedveil.base.array_types import Array, Float32s, Float64s, Int64s
from fedveil.base.example_arrays import opened
from fedveil.learning.learning_task import Classification, NextToken
from fedveil.learning.losses import each_loss
from fedveil.learning.weight_layout import Layout
from fedveil.protections.reading import Reading

_BATCH = 500
_Weights: TypeAlias = dict[str, torch.Tensor]
#: Computes the loss of each example of a batch from a model's weights.
_Losses: TypeAlias = Callable[[_Weights], torch.Tensor]
#: Scores examples with their targets (classes or tokens) by one reading.
Scorer: TypeAlias = Callable[[Reading, Array, Array], Float64s]


class ReportScores:
    """Computes membership scores from the reports of a round that starts with `weights`."""

    def __init__(self, model: nn.Module, weights: Float32s) -> None:
        self._model = copy.deepcopy(model).cpu().eval()
        self._layout = Layout(self._model)
        self._weights = weights

    def along(self, reading: Reading, x: Array, y: Array) -> Float64s:
        """Return how fast each example's loss falls if the weights move along the estimated update.

        `reading` is the attacker's estimate of an update, and the examples are the rows of `x` and
        `y`. The direction is the estimate, with its entries weighted by their reliability, scaled
        to norm 1. The result is the inner product of the direction and the example's negative
        gradient. It is 0 for all examples if the report reveals nothing.

        Forward-mode derivatives give the results of a whole batch at once. If torch has none for
        this model, as for an autograd function without `jvp`, each example has its own backward
        pass.
        """
        weighted = reading.estimate * reading.weight
        norm = float(np.linalg.norm(weighted))
        if not norm:
            return np.zeros(len(y))
        start = self._views(self._weights)
        direction = self._views((weighted / norm).astype(np.float32))
        # buffers, such as BatchNorm's statistics, have no gradient
        learnt = [entry.name for entry in self._layout.entries if entry.fate == "parameter"]

        def by_forward_derivatives(losses: _Losses) -> torch.Tensor:
            with _forward_derivatives(self._model):
                moving: _Weights = {
                    name: forward_ad.make_dual(start[name], direction[name])  # type: ignore[no-untyped-call]
                    for name in learnt
                }
                loss = losses({**start, **moving})
                change: torch.Tensor = forward_ad.unpack_dual(loss).tangent  # type: ignore[no-untyped-call]
            return -change

        def by_backward_pass(losses: _Losses) -> torch.Tensor:
            moving = {name: start[name].clone().requires_grad_() for name in learnt}
            with torch.enable_grad():
                loss = losses({**start, **moving}).sum()
            gradients = torch.autograd.grad(loss, [*moving.values()], allow_unused=True)
            pairs = zip(learnt, gradients, strict=True)
            parts = [(g * direction[name]).sum() for name, g in pairs if g is not None]
            return -torch.stack(parts).sum()[None]

        try:
            return self._of_batches(x, y, by_forward_derivatives)
        except NotImplementedError:
            return self._of_batches(x, y, by_backward_pass, most=1)

    def moved(self, reading: Reading, x: Array, y: Array) -> Float64s:
        """Return by how much each example's loss falls if the estimated update is applied.

        The examples are the rows of `x` and `y`. `reading` must estimate the update's length as
        well as its direction. If it estimates nothing, all results are 0. If the estimated update
        makes a loss infinite or NaN, the result is the lowest float32.
        """
        if reading.empty:
            return np.zeros(len(y))
        before = self._views(self._weights)
        after = self._views((self._weights + reading.estimate).astype(np.float32))
        least = torch.finfo(torch.float32).min

        def falls(losses: _Losses) -> torch.Tensor:
            return torch.nan_to_num(losses(before) - losses(after), nan=least, neginf=least)

        return self._of_batches(x, y, falls)

    def _views(self, vector: Float32s) -> _Weights:
        views = self._layout.views(torch.from_numpy(vector))
        named = zip(self._layout.entries, views, strict=True)
        return {entry.name: view for entry, view in named}

    @torch.no_grad()
    def _of_batches(
        self, x: Array, y: Array, score: Callable[[_Losses], torch.Tensor], most: int | None = None
    ) -> Float64s:
        """Return the scores of all examples, computed batch by batch.

        `score` returns the scores of one batch. It gets a function that maps weights to the losses
        of the batch's examples. A batch has at most `most` examples (default: `_BATCH`).
        """
        most = _BATCH if most is None else most
        task = Classification() if are_classes(y) else NextToken()
        each, parts = each_loss(task.loss_name), []
        size = min(most, getattr(self._model, "scored_at_once", most))
        for i in range(0, len(y), size):
            batch = task.collate(opened(x[i : i + size]), opened(y[i : i + size]))

            def losses(weights: _Weights, batch: Any = batch) -> torch.Tensor:
                inputs, targets = batch
                return each(functional_call(self._model, weights, (inputs,)), targets)

            parts.append(score(losses).double().numpy())
        return np.concatenate(parts)


@contextmanager
def _forward_derivatives(model: nn.Module) -> Iterator[None]:
    """A context in which torch can compute forward-mode derivatives of the model's outputs.

    torch's fastest attention and recurrent layers do not support this mode, so the context replaces
    them by slower ones.
    """
    attention, onednn = torch.backends.mha, torch.backends.mkldnn
    with ExitStack() as stack:
        stack.callback(attention.set_fastpath_enabled, attention.get_fastpath_enabled())
        attention.set_fastpath_enabled(False)
        if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
            stack.callback(setattr, onednn, "enabled", onednn.enabled)
            onednn.enabled = False  # type: ignore[assignment]
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(forward_ad.dual_level())
        yield


@dataclass(frozen=True)
class Round:
    """The attacker's estimates of one round's updates, and the examples that the attacker tests.

    Examples are given as row numbers. `readings[i]` is the estimate of client i's update, from its
    report. Client i trained on the rows `held[i]`. `strangers[i]` are rows that no client trained
    on, and that the attacker tests against client i's report. If single reports reveal nothing,
    `summed` is True: there is one estimate, from the mean of the reports, and all clients count as
    one.
    """

    readings: Sequence[Reading]
    held: Sequence[Int64s]
    strangers: Sequence[Int64s]
    summed: bool = False

    def scores(self, score: Scorer, x: Array, y: Array) -> tuple[Float64s, Float64s]:
        """Return the scores of the members (rows `held`), and the scores of the `strangers`.

        Examples are rows of `x` and `y`. The rows `held[i]` and `strangers[i]` are tested against
        client i. `score` computes an example's score from an estimated update. The result for an
        example is its score under the estimate of client i's update, minus its mean score under the
        estimates of all other clients' updates. Nothing is subtracted if there is only one client.
        A client without rows to test has no scores.
        """
        members, others = [], []
        for i, (held, strangers) in enumerate(zip(self.held, self.strangers, strict=True)):
            asked = np.concatenate([held, strangers])
            if not len(asked):
                continue
            scores = [score(reading, x[asked], y[asked]) for reading in self.readings]
            rest = [scored for j, scored in enumerate(scores) if j != i]
            mine = scores[i] - np.mean(rest, axis=0) if rest else scores[i]
            members.append(mine[: len(held)])
            others.append(mine[len(held) :])
        return np.concatenate(members), np.concatenate(others)

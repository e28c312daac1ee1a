"""Training in native code, and the references that it is compared with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.engine.job_model import ModelShape
from fedveil.engine.trainer_choice import _input_shapes
from fedveil.learning.known_layers import parts_of
from fedveil.learning.losses import mean_loss
from fedveil.learning.trainer import ClientData, LoopTrainer, TrainingPlan, make_optimizer
from training_parts import train


class Double(CompiledTrainer):
    kind = np.float64


def compiled(model: nn.Module, plan: TrainingPlan, kind: type = CompiledTrainer) -> Any:
    trainer = kind.of(copy.deepcopy(model), plan)
    assert trainer is not None
    return trainer


def refused(
    model: nn.Module, shape: tuple[int, ...], *scores_of: str, called: bool = True
) -> list[Sequence[str] | None]:
    """Return the reasons for which native code refuses each layer, for examples of `shape`.

    If `called` is False, only the input of the first layer is known. By default, an example has one
    row of scores.
    """
    from fedveil.compiled.chain import KNOWN, refusals

    parts = list(parts_of(model, KNOWN))
    words = any(isinstance(layer, nn.Embedding) for layer in model.modules())
    known = _input_shapes(model, ModelShape(shape, 5, whole_examples=words))
    return refusals(parts, known if called else {parts[0].module: shape}, scores_of or ["row"])


def by_loop(model: nn.Module, plan: TrainingPlan, cohort: Sequence[ClientData]) -> np.ndarray:
    return train(LoopTrainer(copy.deepcopy(model), plan), model, cohort)


def in_double(model: nn.Module, plan: TrainingPlan, client: ClientData) -> np.ndarray:
    """Train with a simple loop in float64."""
    model = copy.deepcopy(model).double().train()
    parameters = [*model.parameters()]
    before = torch.cat([p.detach().reshape(-1) for p in parameters])
    optimizer = make_optimizer(parameters, plan)
    for batch in client.batches(plan):
        optimizer.zero_grad()
        y = client.y[batch]
        loss = mean_loss(plan.loss, plan.class_weights)
        x = client.x[batch]
        scores = model(x.double() if x.is_floating_point() else x)
        loss(scores, y.double() if y.is_floating_point() else y).backward()
        if plan.proximal:
            begin = 0
            for p in parameters:
                was = before[begin : begin + p.numel()].view(p.shape)
                p.grad += plan.proximal * (p.detach() - was)
                begin += p.numel()
        if plan.gradient_norm is not None:
            nn.utils.clip_grad_norm_(parameters, plan.gradient_norm)
        optimizer.step()
    after = torch.cat([p.detach().reshape(-1) for p in parameters])
    return (after - before).numpy()


def trained_as_torch_trains(
    model: nn.Module, shape: tuple[int, ...], plan: TrainingPlan, cohort: Sequence[ClientData]
) -> None:
    """Check the native result to 1e-6 or, if that is more, to 4 times the error of torch's loop."""
    trainer = compiled(model, plan)
    assert trainer.serves(shape)
    found, torchs = train(trainer, model, cohort), by_loop(model, plan, cohort)
    for row, single, client in zip(found, torchs, cohort, strict=True):
        exact = in_double(model, plan, client)
        errs = float(np.abs(single - exact).max())
        np.testing.assert_allclose(row, exact, atol=max(1e-6, 4 * errs))
